// A conversation as the list of its turns; beside another one, below what it is asked with.

import { make, put } from "../../dom.js";
import { Entry } from "./turn.js";

/** @typedef {import("../said/tree.js").Tree} Tree */
/** @typedef {import("./turn.js").Turn} Turn */

export class Column {
  /** @type {WeakMap<Turn, Entry>} those that are not shown, too: what one opened or chose in them stays */
  entries = new WeakMap();

  /**
   * `ask(parent, input, text)` asks in this conversation, `shown()` is called for another version,
   * and `grown()` as what is written takes more room.
   * @param {Tree} conversation
   * @param {{ ask: import("./turn.js").Ask, shown: () => void, grown: () => void }} hands
   */
  constructor(conversation, { ask, shown, grown }) {
    this.conversation = conversation;
    this.hands = {
      ask,
      grown,
      /** @param {Turn} turn @param {number} index */
      choose: (turn, index) => {
        conversation.siblings(turn).chosen = index;
        shown();
      },
    };
    this.element = make("section", "column");
    this.heading = make("h2");
    this.list = make("ol", "turns");
    this.element.append(this.heading, this.list);
  }

  // `title` is empty where there is nothing to tell it from.
  /** @param {string} title */
  show(title) {
    const { conversation, heading, list } = this;
    put(heading, title);
    heading.hidden = !title;
    list.ariaLabel = title ? `Turns with ${title}` : "Turns";
    const path = /** @type {any[]} */ (conversation.path());
    path.forEach((turn, index) => {
      const entry = this.entry(turn);
      entry.show(index === path.length - 1);
      const known = list.children[index];
      if (known === undefined) list.append(entry.element);
      else if (known !== entry.element) known.replaceWith(entry.element);
    });
    while (list.children.length > path.length) list.lastChild?.remove();
  }

  /** @param {Turn} turn */
  entry(turn) {
    const known = this.entries.get(turn) ?? new Entry(turn, this.conversation, this.hands);
    this.entries.set(turn, known);
    return known;
  }
}
