// Chats over one socket, which the browser keeps.

import { Chats } from "./chats.js";
import { askForKey } from "./key.js";

/** @param {HTMLElement} element @param {import("../api.js").Api} api @param {string[]} path */
export function mount(element, api, path) {
  /** @type {Chats | null} */
  let chats = null;
  const ask = (why = "") => {
    chats?.close();
    chats = null;
    askForKey(element, api, begin, why);
  };
  // Back to where one signs in, or an operator chooses a key.
  const refused = (/** @type {string} */ why) => {
    if (api.isOperator) ask(why);
    else element.dispatchEvent(new CustomEvent("refused", { bubbles: true, detail: why }));
  };
  const begin = () => { chats = new Chats(element, api, { changeKey: () => ask(), refused }, path[0]); };
  if (api.chatKey === null) ask();
  else begin();
  const look = () => chats?.following.look();
  window.addEventListener("scroll", look, { passive: true });
  return {
    visit: (/** @type {string[]} */ [id]) => { chats?.visit(id); },
    close() {
      window.removeEventListener("scroll", look);
      chats?.close();
      element.replaceChildren();
    },
  };
}
