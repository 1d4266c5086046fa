// A conversation as the list of its turns; beside another one, below what it is asked with.

import { make, put } from "../dom.js";
import { turnOf } from "./turn.js";

export class Column {
  // `ask(parent, input, text)` asks in this conversation, `shown()` is called for another version.
  constructor(conversation, { ask, shown }) {
    this.conversation = conversation;
    this.hands = {
      ask,
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
  show(title) {
    const { conversation, hands, heading, list } = this;
    put(heading, title);
    heading.hidden = !title;
    list.ariaLabel = title ? `Turns with ${title}` : "Turns";
    const path = conversation.path();
    // An answer that has ended stays as it is: what is selected or typed in it does, too.
    path.forEach((turn, index) => {
      const isLast = index === path.length - 1;
      const state = `${turn.answer.status} ${isLast} ${conversation.isRunning}`;
      const known = list.children[index];
      const isSame = known?.turn === turn && known.state === state && !turn.answer.isRunning;
      if (isSame) return;
      const entry = turnOf(turn, conversation, { isLast, ...hands });
      Object.assign(entry, { turn, state });
      if (known) known.replaceWith(entry);
      else list.append(entry);
    });
    while (list.children.length > path.length) list.lastChild.remove();
  }
}
