// A request's chain of blocks, outlined on the picture of the cells.

import { fill } from "../dom.js";

/** @typedef {import("./picture.js").Picture} Picture */

const MARKUP = `<path class="halo"/><path class="found"/><path class="own"/><path class="order"/>`;

export class Chain {
  /**
   * @param {SVGElement} outline lies on the picture's canvas
   * @param {Picture} picture
   */
  constructor(outline, picture) {
    fill(outline, MARKUP);
    this.outline = outline;
    this.picture = picture;
  }

  hide() { this.outline.toggleAttribute("hidden", true); }

  /**
   * Outline lines of cells: whole where they were found, the first `numFound` of each line, and
   * dashed behind these.
   * @param {number[][]} lines @param {number} numFound
   */
  draw(lines, numFound) {
    this.outline.toggleAttribute("hidden", false);
    const { columns, rows, size } = this.picture;
    this.outline.setAttribute("width", String(columns * size));
    this.outline.setAttribute("height", String(rows * size));
    /** @type {Set<number>} */
    const found = new Set();
    /** @type {Set<number>} */
    const own = new Set();
    const order = [];
    for (const line of lines) {
      const places = line.map((cell) => this.picture.placeOf(cell));
      places.forEach((place, index) => {
        if (place !== null) (index < numFound ? found : own).add(place);
      });
      const seen = places.filter((place) => place !== null);
      order.push(seen.map((place, index) => `${index ? "L" : "M"}${this.at(place, size / 2)}`).join(""));
    }
    /** @param {Iterable<number>} some */
    const boxes = (some) => [...some].map((place) => `M${this.at(place)}h${size}v${size}h-${size}z`).join("");
    this.put(".halo", boxes(found) + boxes(own));
    this.put(".found", boxes(found));
    this.put(".own", boxes(own));
    this.put(".order", order.join(""));
  }

  /** @param {string} name @param {string} path */
  put(name, path) { this.outline.querySelector(name)?.setAttribute("d", path); }

  /** @param {number} place @param {number} inset */
  at(place, inset = 0) {
    const { columns, size } = this.picture;
    return `${(place % columns) * size + inset} ${Math.floor(place / columns) * size + inset}`;
  }
}
