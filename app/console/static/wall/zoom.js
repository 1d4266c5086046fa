// Where cells are too many to be seen one by one: a closer look at a part of them.

import { fill, put } from "../dom.js";
import { number } from "./words.js";

const MARKUP = `<button type="button" name="closer">Look closer</button>
<button type="button" name="all">All blocks</button>
<button type="button" name="before" aria-label="The part before">‹</button>
<button type="button" name="behind" aria-label="The part behind">›</button>
<span class="hint part" role="status"></span>`;

export class Zoom {
  /**
   * @param {HTMLElement} element
   * @param {import("./picture.js").Picture} picture
   * @param {() => void} turned is told that another part is to be shown
   * @param {AbortSignal} signal
   */
  constructor(element, picture, turned, signal) {
    fill(element, MARKUP);
    this.element = element;
    this.picture = picture;
    this.turned = turned;
    const found = /** @param {string} name */ (name) => /** @type {HTMLButtonElement} */ (element.querySelector(`[name=${name}]`));
    this.closer = found("closer");
    this.all = found("all");
    this.before = found("before");
    this.behind = found("behind");
    this.told = /** @type {HTMLElement} */ (element.querySelector(".part"));
    this.closer.addEventListener("click", () => this.show(0), { signal });
    this.all.addEventListener("click", () => this.show(null), { signal });
    this.before.addEventListener("click", () => this.show((picture.part ?? 0) - 1), { signal });
    this.behind.addEventListener("click", () => this.show((picture.part ?? 0) + 1), { signal });
  }

  /**
   * Look closer at the part that a cell lies in, where there is anything to be seen by that.
   * @param {number} cell
   */
  enter(cell) {
    if (this.picture.perTile > 1) this.show(Math.floor(cell / this.picture.perPart));
  }

  leave() { if (this.picture.part !== null) this.show(null); }

  /**
   * While a part is looked at, have it be the one that a cell lies in.
   * @param {number} cell
   */
  follow(cell) {
    if (this.picture.part !== null && this.picture.placeOf(cell) === null) this.show(Math.floor(cell / this.picture.perPart));
  }

  /** @param {number | null} part */
  show(part) {
    this.picture.part = part;
    this.turned();
  }

  // What there is to be pressed, and where one is.
  draw() {
    const { part, numParts, perTile, from, to, cells } = this.picture;
    this.element.hidden = part === null && perTile === 1;
    this.closer.hidden = part !== null;
    this.all.hidden = this.before.hidden = this.behind.hidden = part === null;
    this.before.disabled = part === 0;
    this.behind.disabled = part === numParts - 1;
    put(this.told, part === null
      ? `A tile is ${number(perTile)} blocks. Choose one and press Enter, or tap it, to look closer.`
      : `Cells ${number(from)} to ${number(to - 1)} of ${number(cells.length)}`);
  }
}
