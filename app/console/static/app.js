// Signs in and out, and shows one view at a time.

import { api } from "./api.js";
import { mount as chat } from "./chat/view.js";
import { mount as load } from "./load/view.js";
import { mount as tenants } from "./tenants/view.js";
import { mount as wall } from "./wall.js";

// A view is shown in a section; `mount` returns what takes it away. One that stays is only hidden.
const VIEWS = [
  { name: "wall", title: "The wall", mount: wall, forOperators: true },
  { name: "tenants", title: "Tenants", mount: tenants, forOperators: true },
  { name: "load", title: "Load", mount: load, forOperators: true },
  { name: "chat", title: "Chat", mount: chat, stays: true },
];

const door = document.getElementById("door");
const links = document.getElementById("views");
const leave = document.getElementById("leave");
const refusal = document.getElementById("refusal");
const shown = new Map(); // views by name: the section, and what takes it away

function offered() {
  return VIEWS.filter((view) => api.isOperator || !view.forOperators);
}

function chosen() {
  const views = offered();
  return views.find(({ name }) => `#${name}` === location.hash) ?? views[0];
}

function show() {
  const view = chosen();
  for (const other of VIEWS) {
    if (other !== view && shown.has(other.name)) close(other);
  }
  for (const link of links.children) {
    link.setAttribute("aria-current", link.hash === `#${view.name}` ? "page" : "false");
  }
  const section = shown.get(view.name)?.section;
  if (section) section.hidden = false;
  else open(view);
}

function open(view) {
  const section = document.createElement("section");
  section.id = `view-${view.name}`;
  section.setAttribute("aria-label", view.title);
  document.getElementById("main").append(section);
  shown.set(view.name, { section, unmount: view.mount(section, api) });
}

function close(view, isForGood = !view.stays) {
  const { section, unmount } = shown.get(view.name);
  section.hidden = true;
  if (!isForGood) return;
  unmount();
  section.remove();
  shown.delete(view.name);
}

function enter() {
  const entries = offered().map(({ name, title }) =>
    Object.assign(document.createElement("a"), { href: `#${name}`, textContent: title }));
  links.replaceChildren(...entries);
  door.hidden = true;
  links.hidden = leave.hidden = false;
  show();
}

function exit(reason = "") {
  for (const view of VIEWS) {
    if (shown.has(view.name)) close(view, true);
  }
  api.token = api.chatKey = null;
  refusal.textContent = reason;
  door.hidden = false;
  links.hidden = leave.hidden = true;
  document.getElementById("token").focus();
}

async function check() {
  try {
    await api.check();
  } catch (error) {
    exit(error.message);
    return;
  }
  refusal.textContent = "";
  enter();
}

door.addEventListener("submit", (event) => {
  event.preventDefault();
  api.token = document.getElementById("token").value.trim();
  door.reset();
  check();
});
leave.addEventListener("click", () => exit());
window.addEventListener("hashchange", () => { if (door.hidden) show(); });
if (api.token === null) exit();
else check();
