// A table of very many rows, of which only those are there that are seen, and some around them.

import { make, put } from "../../dom.js";

const AROUND = 12;
const GUESSED_PX = 36; // of a row, until there is one

/**
 * @template {{ id: string }} Row
 * @typedef {object} Shape
 * @property {string} label
 * @property {{ text: (row: Row) => string, width: number }[]} columns
 * @property {(row: Row) => Node} first what the first cell has
 */

/** @template {{ id: string }} Row */
export class VirtualTable {
  /** @param {Shape<Row>} shape */
  constructor({ label, columns, first }) {
    this.columns = columns;
    this.first = first;
    this.rows = /** @type {Row[]} */ ([]);
    this.shown = /** @type {Map<string, HTMLTableRowElement>} */ (new Map());
    this.height = GUESSED_PX;
    this.region = make("div", "scroll virtual");
    Object.assign(this.region, { tabIndex: 0, ariaLabel: label, role: "region" });
    this.table = make("table");
    this.head = this.table.createTHead();
    this.body = this.table.createTBody();
    this.foot = this.table.createTFoot();
    const widths = make("colgroup");
    for (const { width } of columns) {
      const column = make("col");
      column.style.width = `${width}rem`;
      widths.append(column);
    }
    this.table.prepend(widths);
    this.table.style.minWidth = `${columns.reduce((all, { width }) => all + width, 0)}rem`;
    this.above = this.space();
    this.below = this.space();
    this.region.append(this.table);
    this.region.addEventListener("scroll", () => this.draw(), { passive: true });
    this.watching = new ResizeObserver(() => this.draw());
    this.watching.observe(this.region);
  }

  close() { this.watching.disconnect(); }

  // Whether somebody points at a row, or has one chosen: then none should move away.
  get isInUse() { return this.body.matches(":hover, :focus-within"); }

  /** @param {Row[]} rows */
  show(rows) {
    this.rows = rows;
    this.table.ariaRowCount = String(rows.length + this.head.rows.length + this.foot.rows.length);
    this.draw();
  }

  draw() {
    const { scrollTop, clientHeight } = this.region;
    const first = Math.max(0, Math.floor(scrollTop / this.height) - AROUND);
    const seen = this.rows.slice(first, Math.ceil((scrollTop + clientHeight) / this.height) + AROUND);
    const ids = new Set(seen.map(({ id }) => id));
    for (const [id, element] of this.shown) {
      if (ids.has(id)) continue;
      element.remove();
      this.shown.delete(id);
    }
    // Rows that stay are not moved, and keep the focus.
    let before = /** @type {Element} */ (this.above);
    seen.forEach((row, at) => {
      const element = this.rowOf(row);
      element.ariaRowIndex = String(first + at + this.head.rows.length + 1);
      if (before.nextElementSibling !== element) before.after(element);
      before = element;
    });
    this.above.style.height = `${first * this.height}px`;
    this.below.style.height = `${(this.rows.length - first - seen.length) * this.height}px`;
    this.measure();
  }

  // All rows are as high as one is.
  measure() {
    const [element] = this.shown.values();
    const height = element?.getBoundingClientRect().height;
    if (!height || Math.abs(height - this.height) < 0.1) return;
    this.height = height;
    this.draw();
  }

  /** @param {Row} row */
  rowOf(row) {
    let element = this.shown.get(row.id);
    if (element === undefined) {
      element = make("tr");
      element.insertCell().append(this.first(row));
      for (const _ of this.columns.slice(1)) element.insertCell();
      this.shown.set(row.id, element);
    }
    const { cells } = element;
    this.columns.slice(1).forEach(({ text }, at) => {
      const told = text(row);
      put(cells[at + 1], told);
      cells[at + 1].classList.toggle("zero", told === "0" || told === "–");
    });
    return element;
  }

  space() {
    const element = this.body.insertRow();
    element.ariaHidden = "true";
    return element;
  }
}
