// Signs in and out; what is seen in between is a view's own.

import { api } from "./api.js";
import { mount } from "./wall.js";

const door = document.getElementById("door");
const view = document.getElementById("view");
const leave = document.getElementById("leave");
const refusal = document.getElementById("refusal");
let unmount = null;

function show(isIn) {
  door.hidden = isIn;
  view.hidden = leave.hidden = !isIn;
  unmount?.();
  unmount = isIn ? mount(view, api) : null;
  if (!isIn) document.getElementById("token").focus();
}

async function enter() {
  try {
    await api.get("/live");
    refusal.textContent = "";
    show(true);
  } catch (error) {
    api.token = null;
    refusal.textContent = error.message;
    show(false);
  }
}

door.addEventListener("submit", (event) => {
  event.preventDefault();
  api.token = document.getElementById("token").value.trim();
  door.reset();
  enter();
});
leave.addEventListener("click", () => {
  api.token = null;
  show(false);
});
if (api.token === null) show(false);
else enter();
