// For developers: the line's last messages as they went, and a way to break it.

import { button, fill, make, part } from "../../dom.js";

/** @typedef {import("./line.js").Line} Line */

const MARKUP = `
<summary>Line and raw events</summary>
<div class="tools"><p class="hint"></p></div>
<ol class="tape" tabindex="0" aria-label="What went over the line"></ol>`;
const MOST = 300;

export class Drawer {
  /** @param {HTMLDetailsElement} element @param {Line} line */
  constructor(element, line) {
    fill(element, MARKUP);
    this.element = element;
    this.line = line;
    this.list = part(element, ".tape");
    this.seen = 0;
    this.cut = button("Cut the line", () => line.cut());
    this.cut.title = "Break the socket, as a bad network would";
    part(element, ".tools").prepend(this.cut);
    line.record.heard = () => this.heard();
    element.addEventListener("toggle", () => this.show());
  }

  heard() {
    if (!this.element.open || this.isDrawing) return;
    this.isDrawing = true;
    requestAnimationFrame(() => this.show());
  }

  show() {
    this.isDrawing = false;
    if (!this.element.open) return;
    const { said, count } = this.line.record;
    const fresh = said.slice(said.length - Math.min(count - this.seen, MOST, said.length));
    this.list.append(...fresh.map(entryOf));
    this.seen = count;
    while (this.list.children.length > MOST) this.list.firstChild.remove();
    part(this.element, ".hint").textContent = `${count} messages, of which the last ${this.list.children.length} are shown.`;
    this.list.scrollTop = this.list.scrollHeight;
  }
}

// What it holds is written out when it is opened.
/** @param {import("./tape.js").Said} said */
function entryOf([who, message]) {
  const { type, stream_id: lane, sequence_number: number, delta } = message;
  const said = delta === undefined ? (message.error ?? message.response?.error)?.message : JSON.stringify(delta);
  const what = [who === "client" ? "→" : "←", type, lane, number, said];
  const details = make("details");
  const text = make("pre");
  details.append(make("summary", "", what.filter((one) => one !== undefined).join(" ")), text);
  details.addEventListener("toggle", () => { text.textContent = JSON.stringify(message, null, 2); });
  const item = make("li");
  item.append(details);
  return item;
}
