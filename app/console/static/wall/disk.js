// What is kept on disk, a cell a block, by owner.

import { fill } from "../dom.js";
import { Cells } from "./frames.js";
import { Picture } from "./picture.js";

const MARKUP = `<h2>On disk</h2>
<div class="cells"><canvas role="img" aria-label="Blocks on disk, one cell each"></canvas><i class="grid"></i></div>
<p class="summary"></p>`;

export class Disk {
  /**
   * In the colours of the wall's picture, and with the tenant that is chosen there.
   * @param {HTMLElement} element @param {Picture} wall
   */
  constructor(element, wall) {
    fill(element, MARKUP);
    this.element = element;
    this.wall = wall;
    this.summary = /** @type {HTMLElement} */ (element.querySelector(".summary"));
    this.grid = /** @type {HTMLElement} */ (element.querySelector(".grid"));
    this.picture = new Picture(/** @type {HTMLCanvasElement} */ (element.querySelector("canvas")), new Cells());
  }

  get count() { return this.picture.cells.length; }

  /**
   * Take over how many blocks each owner has. Returns whether that is news.
   * @param {Record<string, number>} counts
   */
  take(counts) {
    const parts = Object.entries(counts).toSorted().map(([name, count]) => `${name || "not known"} ${count}`);
    const text = `By owner: ${parts.join(", ")}.`;
    if (this.summary.textContent === text) return false;
    this.summary.textContent = text;
    this.picture.cells = Cells.onDisk(counts);
    this.draw();
    return true;
  }

  draw() {
    const { picture, wall } = this;
    this.element.hidden = this.count === 0;
    Object.assign(picture, { byOwner: wall.byOwner, only: wall.only });
    picture.recolour();
    picture.layOut(this.element.clientWidth);
    picture.flush();
    picture.line(this.grid);
  }
}
