// Short news, seen at the foot of the page wherever one is, and told to screen readers.

import { make } from "./dom.js";

const SHOWN_MS = 6000;

/** @type {HTMLElement | null} */
let place = null;

/** @param {string} text */
export function toast(text) {
  const here = place ?? placed();
  const item = make("p", "toast", text);
  // What is put into a live region once it is there is told; not what it came with.
  requestAnimationFrame(() => here.append(item));
  setTimeout(() => {
    item.remove();
    if (here.childElementCount > 0) return;
    here.remove();
    place = null;
  }, SHOWN_MS);
}

function placed() {
  place = make("div", "toasts");
  place.setAttribute("role", "status");
  document.body.append(place);
  return place;
}
