// A secret that is shown this once, in full, and what to do with it.

import { button, copier, field, make } from "../dom.js";

/** @param {string} what @param {string} secret @param {string} hint @param {Element[]} hands */
export function secretOf(what, secret, hint, ...hands) {
  const element = make("section", "secret");
  element.ariaLabel = `The new ${what}`;
  const shown = field(`The new ${what}, shown once`, "secret", {
    tag: "textarea", value: secret, readOnly: true, rows: 2, spellcheck: false,
  });
  const place = /** @type {HTMLTextAreaElement} */ (shown.lastElementChild);
  const tools = make("div", "tools");
  tools.append(copier(what, () => secret), ...hands, button("I have it", () => element.remove()));
  element.append(shown, make("p", "hint", hint), tools);
  requestAnimationFrame(() => {
    place.focus();
    place.select();
  });
  return element;
}
