// Replicas side by side, a wall each.

import { fill } from "../dom.js";

// A stream each: without HTTP/2 a browser has six connections to a host.
const MOST = 4;
const MARKUP = `
<label class="which" hidden>Replica <select name="replica"></select></label>
<div class="walls"></div>`;

/** @typedef {import("./wall.js").Wall} Wall */
/** @typedef {(part: HTMLElement, replica: number, heard: (count: number) => void) => Wall} Build */

export class Replicas {
  /**
   * @param {HTMLElement & {cells?: import("./frames.js").Cells}} element
   * @param {Build} build makes a wall in an element, and calls heard(count) when it learns how many
   * replicas there are
   */
  constructor(element, build) {
    this.element = element;
    this.build = build;
    fill(this.element, MARKUP);
    this.chooser = /** @type {HTMLSelectElement} */ (element.querySelector("[name=replica]"));
    /** @type {Map<number, {part: HTMLElement, heading: HTMLElement, wall: Wall}>} */
    this.walls = new Map(); // by the replica's number
    this.count = 1;
    this.chooser.addEventListener("change", () => this.show());
    this.show();
  }

  close() {
    for (const replica of this.walls.keys()) this.remove(replica);
    this.element.replaceChildren();
    delete this.element.cells;
  }

  /** @param {number} count */
  hear(count) {
    if (count === this.count) return;
    this.count = count;
    const before = this.chooser.value;
    const numbers = Array.from({ length: count }, (_, replica) => String(replica));
    const all = new Option(count > MOST ? `the first ${MOST}, side by side` : "all, side by side", "");
    this.chooser.replaceChildren(all, ...numbers.map((replica) => new Option(replica)));
    this.chooser.value = numbers.includes(before) ? before : "";
    /** @type {HTMLElement} */ (this.element.querySelector(".which")).hidden = count < 2;
    this.show();
  }

  show() {
    const chosen = this.chooser.value;
    const all = Array.from({ length: Math.min(MOST, this.count) }, (_, replica) => replica);
    const wanted = chosen === "" ? all : [Number(chosen)];
    for (const replica of this.walls.keys()) {
      if (!wanted.includes(replica)) this.remove(replica);
    }
    for (const replica of wanted) {
      if (!this.walls.has(replica)) this.add(replica);
    }
    for (const { heading } of this.walls.values()) heading.hidden = this.count < 2;
    this.element.cells = this.walls.get(wanted[0])?.wall.cells; // for who wants to know what is shown
  }

  /** @param {number} replica */
  add(replica) {
    const part = document.createElement("section");
    const heading = Object.assign(document.createElement("h2"), { textContent: `Replica ${replica}` });
    const inner = document.createElement("div");
    part.setAttribute("aria-label", `Replica ${replica}`);
    part.append(heading, inner);
    const behind = [...this.walls.keys()].filter((other) => other > replica).toSorted((a, b) => a - b);
    this.element.querySelector(".walls")?.insertBefore(part, this.walls.get(behind[0])?.part ?? null);
    const wall = this.build(inner, replica, (count) => this.hear(count));
    this.walls.set(replica, { part, heading, wall });
  }

  /** @param {number} replica */
  remove(replica) {
    const found = this.walls.get(replica);
    this.walls.delete(replica);
    found?.wall.close();
    found?.part.remove();
  }
}
