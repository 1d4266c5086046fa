// A part of a page that is asked for: it says that it comes, or why it did not and how to try again.

import { button, make } from "../dom.js";

/**
 * @typedef {object} Owner what a tab is told of a tenant or a share group
 * @property {import("../api.js").Api} api
 * @property {string} id a tenant's, or "@" and a group's
 * @property {string} path below `/admin`
 * @property {string} address of its page
 * @property {(what: string, secret: string) => void} reveal shows a secret, this once
 * @property {() => Promise<void>} changed has what the page says of it asked anew
 *
 * @typedef {{ visit?(path: string[]): void, close?(): void }} Tab
 */

/** @param {HTMLElement} place @param {string} what @param {() => Promise<(Node | string)[]>} work */
export async function load(place, what, work) {
  place.ariaBusy = "true";
  place.replaceChildren(make("p", "hint", `Loading ${what}…`));
  let parts;
  try {
    parts = await work();
  } catch (error) {
    const told = alerting();
    told.textContent = error.message;
    parts = [told, button("Try again", () => load(place, what, work))];
  }
  place.replaceChildren(...parts);
  place.ariaBusy = "false";
}

// Where a part of a page tells what went wrong in it.
export function alerting() {
  const told = make("p", "problem");
  told.setAttribute("role", "alert");
  return told;
}

// Does something, and tells there what goes wrong.
/** @param {HTMLElement} told @param {() => unknown} work */
export const telling = (told, work) => async () => {
  try {
    await work();
    told.textContent = "";
  } catch (error) {
    told.textContent = error.message;
  }
};

/** @param {string} title @param {string} text @param {Element[]} hands */
export function emptiness(title, text, ...hands) {
  const element = make("div", "empty");
  element.append(make("h2", "", title), make("p", "hint", text), ...hands);
  return element;
}

/** @param {string} text @param {() => void} pressed */
export function primary(text, pressed) {
  const element = button(text, pressed);
  element.className = "primary";
  return element;
}

/** @param {string} text @param {string} address */
export function link(text, address) {
  return Object.assign(make("a", "", text), { href: address });
}

/** @param {string | null} time */
export function moment(time) { return time === null ? "–" : time.replace("T", " ").slice(0, 16); }
