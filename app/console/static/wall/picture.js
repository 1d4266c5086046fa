// Cells as a picture: a pixel each in a small one, of which the rows that changed are enlarged. Where
// cells would be too small to be told apart, a pixel is a tile: several neighbours.

import { FINDABLE, HELD, LEASED, ON_DISK, PINNED, STATE } from "./frames.js";

/** @typedef {import("./frames.js").Cells} Cells */

// What a cell is, in a word; the last that applies. Each has a colour of its name in style.css.
export const KINDS = ["free", "cached", "leased", "state", "in-use", "shared", "pinned", "on-disk"];

const [FREE, CACHED, LEASE, CHECKPOINT, IN_USE, SHARED, PIN, DISK] = KINDS.keys();
const LEGIBLE = 4; // CSS pixels: smaller cells become tiles
const TILE = 8; // a tile at least
const LARGEST = 22;
const TALL = 560; // of the whole, where cells or tiles are not at their smallest
const PART = 14; // a cell of a part that is looked at, about
const HUES = 24;
const GRID_PIXELS = 6; // smaller cells have no lines between them
const TELLING = 3; // a cell in use counts for so many in its tile
const LEAST_MIXED = 0.35; // of a tile's colour, where one of its cells is not free

/** @param {Cells} cells @param {number} cell */
export function kindOf(cells, cell) {
  const state = cells.state[cell];
  if (state & ON_DISK) return DISK;
  if (state & PINNED) return PIN;
  if (state & HELD) return cells.references[cell] > 1 ? SHARED : IN_USE;
  if (state & STATE) return CHECKPOINT;
  if (state & LEASED) return LEASE;
  return state & FINDABLE ? CACHED : FREE;
}

export class Picture {
  /** @param {HTMLCanvasElement} canvas @param {Cells} cells */
  constructor(canvas, cells) {
    this.canvas = canvas;
    this.cells = cells;
    this.byOwner = false; // colours tell owners, not kinds
    /** @type {string | null} */
    this.only = null; // an owner's name: the cells of others are faint
    /** @type {number | null} */
    this.part = null; // the number of the part that is shown; all of it otherwise
    this.large = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", { alpha: false }));
    this.small = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d", { alpha: false }));
    /** @type {number[]} */
    this.colours = [];
    /** @type {number[][]} */
    this.ofOwners = []; // of each hue: cached, held
    this.background = 0;
    this.size = this.columns = this.rows = this.perTile = this.perPart = 1;
    this.from = this.to = this.firstSlotRow = this.firstRow = this.lastRow = 0;
    this.image = this.small.createImageData(1, 1);
    this.pixels = new Uint32Array(1);
    this.weights = new Map();
    this.recolour();
    this.layOut(1);
  }

  /**
   * Choose the size of cells for a width in CSS pixels, and paint them all.
   * @param {number} given
   */
  layOut(given) {
    const { length } = this.cells;
    const width = Math.max(1, given); // what is not seen has none
    this.perPart = Math.max(1, Math.floor(width / PART) * Math.floor(TALL / PART));
    if (this.part !== null) this.part = Math.min(this.part, Math.max(0, this.numParts - 1));
    this.from = this.part === null ? 0 : this.part * this.perPart;
    this.to = this.part === null ? length : Math.min(length, this.from + this.perPart);
    /** @param {number} side of a tile, in cells */
    const sized = (side) => Math.floor(side * Math.sqrt((width * TALL) / Math.max(1, this.to - this.from)));
    let side = 1;
    if (sized(1) < LEGIBLE) while (sized(side) < TILE) side++;
    this.perTile = side * side;
    this.size = Math.min(LARGEST, Math.max(1, sized(side)));
    this.columns = Math.max(1, Math.floor(width / this.size));
    /** @param {number} count */
    const rows = (count) => Math.ceil(Math.ceil(Math.max(0, count) / this.perTile) / this.columns);
    const blockRows = rows(this.blocksTo - this.from), slotRows = rows(this.to - this.slotsFrom);
    this.firstSlotRow = blockRows + (blockRows && slotRows ? 1 : 0);
    this.rows = Math.max(1, this.firstSlotRow + slotRows);
    this.image = this.small.createImageData(this.columns, this.rows);
    this.pixels = new Uint32Array(this.image.data.buffer).fill(this.background);
    this.small.canvas.width = this.columns;
    this.small.canvas.height = this.rows;
    this.canvas.width = this.columns * this.size;
    this.canvas.height = this.rows * this.size;
    this.large.imageSmoothingEnabled = false;
    this.paint(this.from, this.to - this.from);
    [this.firstRow, this.lastRow] = [0, this.rows - 1];
  }

  get numParts() { return Math.ceil(this.cells.length / this.perPart); }
  get blocksTo() { return Math.min(this.to, this.cells.numBlocks); } // of the cells that are shown
  get slotsFrom() { return Math.max(this.from, this.cells.numBlocks); }

  /**
   * Have an element that lies on the canvas draw lines between cells.
   * @param {HTMLElement} grid
   */
  line(grid) {
    const { size, columns, rows } = this;
    grid.hidden = size < GRID_PIXELS;
    grid.style.width = `${columns * size}px`;
    grid.style.height = `${rows * size}px`;
    grid.style.backgroundSize = `${size}px ${size}px`;
  }

  /**
   * Have an element that lies on the canvas frame a cell.
   * @param {HTMLElement} mark @param {number} cell
   */
  frame(mark, cell) {
    const { columns, size } = this;
    const place = this.placeOf(cell);
    mark.hidden = place === null;
    mark.style.width = mark.style.height = `${size}px`;
    mark.style.left = `${((place ?? 0) % columns) * size}px`;
    mark.style.top = `${Math.floor((place ?? 0) / columns) * size}px`;
  }

  // Read the colours of the page's style, which may have become dark.
  recolour() {
    const style = getComputedStyle(this.canvas);
    this.colours = KINDS.map((kind) => this.packed(style.getPropertyValue(`--${kind}`)));
    this.background = this.packed(style.getPropertyValue("--ground"));
    this.ofOwners = [];
    for (let hue = 0; hue < HUES; hue++) {
      // 55 of 360 degrees further each time: neighbours differ, and all are used.
      const angle = (hue * 55) % 360;
      const pair = [`hsl(${angle} 45% 62%)`, `hsl(${angle} 75% 42%)`];
      this.ofOwners.push(pair.map((colour) => this.packed(colour)));
    }
  }

  /**
   * A colour as a pixel: ABGR in the order of bytes that all browsers run on.
   * @param {string} colour
   */
  packed(colour) {
    this.small.fillStyle = colour.trim() || "#000000";
    const rgb = Number.parseInt(this.small.fillStyle.slice(1), 16);
    return (0xff000000 | ((rgb & 0xff) << 16) | (rgb & 0xff00) | (rgb >> 16)) >>> 0;
  }

  /**
   * The colour of an owner's cached cells, as CSS has it.
   * @param {number} owner
   */
  cssOf(owner) {
    const pixel = this.ofOwners[this.cells.hues[owner] % HUES][0];
    return `rgb(${pixel & 255} ${(pixel >>> 8) & 255} ${(pixel >>> 16) & 255})`;
  }

  /** @param {number} cell */
  isOthers(cell) {
    const { state, owner, owners } = this.cells;
    return this.only !== null && state[cell] !== 0 && owners[owner[cell]] !== this.only;
  }

  /** @param {number} cell */
  colourOf(cell) {
    const { state, owner, hues } = this.cells;
    let colour = this.colours[kindOf(this.cells, cell)];
    if (this.byOwner && state[cell]) colour = this.ofOwners[hues[owner[cell]] % HUES][state[cell] & HELD];
    return this.isOthers(cell) ? mixed(colour, this.background, 1 / 8) : colour;
  }

  /**
   * What most cells of a tile are that are not free, paler the more of them are.
   * @param {number} first @param {number} end
   */
  colourOfTile(first, end) {
    const { weights, cells } = this;
    weights.clear();
    let best = this.colours[FREE], most = 0, numUsed = 0;
    for (let cell = first; cell < end; cell++) {
      if (!cells.state[cell]) continue;
      numUsed++;
      const colour = this.colourOf(cell);
      const weight = this.isOthers(cell) ? 1 / (end - first) : cells.state[cell] & (HELD | PINNED) ? TELLING : 1;
      const sum = (weights.get(colour) ?? 0) + weight;
      weights.set(colour, sum);
      if (sum > most) [best, most] = [colour, sum];
    }
    if (numUsed === 0) return best;
    return mixed(best, this.colours[FREE], LEAST_MIXED + (1 - LEAST_MIXED) * numUsed / (end - first));
  }

  /**
   * Note that so many cells have changed; they are seen from the next `flush` on.
   * @param {number} first @param {number} count
   */
  paint(first, count) {
    const end = Math.min(this.to, first + count);
    let cell = Math.max(this.from, first);
    if (cell >= end) return;
    this.firstRow = Math.min(this.firstRow, this.rowOf(cell));
    this.lastRow = Math.max(this.lastRow, this.rowOf(end - 1));
    if (this.perTile === 1) {
      for (; cell < end; cell++) this.pixels[/** @type {number} */ (this.placeOf(cell))] = this.colourOf(cell);
      return;
    }
    while (cell < end) {
      const [start, stop] = this.tileOf(cell);
      this.pixels[/** @type {number} */ (this.placeOf(cell))] = this.colourOfTile(start, stop);
      cell = stop;
    }
  }

  flush() {
    const height = this.lastRow - this.firstRow + 1;
    if (height <= 0) return;
    const { columns, size, firstRow } = this;
    this.small.putImageData(this.image, 0, 0, 0, firstRow, columns, height);
    this.large.drawImage(
      this.small.canvas, 0, firstRow, columns, height,
      0, firstRow * size, columns * size, height * size,
    );
    [this.firstRow, this.lastRow] = [this.rows, -1];
  }

  /**
   * The cells that share a cell's place: the first one, and the one behind them.
   * @param {number} cell
   * @returns {[first: number, end: number]}
   */
  tileOf(cell) {
    const isSlot = cell >= this.cells.numBlocks;
    const base = isSlot ? this.slotsFrom : this.from;
    const first = base + Math.floor((cell - base) / this.perTile) * this.perTile;
    return [first, Math.min(first + this.perTile, isSlot ? this.to : this.blocksTo)];
  }

  /**
   * Where a cell is, counted by rows; null where it is not shown.
   * @param {number} cell
   */
  placeOf(cell) {
    if (cell < this.from || cell >= this.to) return null;
    if (cell < this.cells.numBlocks) return Math.floor((cell - this.from) / this.perTile);
    return this.firstSlotRow * this.columns + Math.floor((cell - this.slotsFrom) / this.perTile);
  }

  /** @param {number} cell */
  rowOf(cell) { return Math.floor((this.placeOf(cell) ?? 0) / this.columns); }

  /**
   * The cell at a place of the canvas, in CSS pixels, of a tile the first; null where there is none.
   * @param {number} x @param {number} y
   */
  cellAt(x, y) {
    const column = Math.floor(x / this.size);
    const row = Math.floor(y / this.size);
    if (column < 0 || column >= this.columns || row < 0) return null;
    const isSlot = this.slotsFrom < this.to && row >= this.firstSlotRow;
    const place = (row - (isSlot ? this.firstSlotRow : 0)) * this.columns + column;
    const cell = (isSlot ? this.slotsFrom : this.from) + place * this.perTile;
    return cell < (isSlot ? this.to : this.blocksTo) ? cell : null;
  }
}

/**
 * So much of one colour in another.
 * @param {number} colour @param {number} background @param {number} part
 */
function mixed(colour, background, part) {
  let sum = 0xff000000;
  for (const shift of [0, 8, 16]) {
    const [one, other] = [(colour >>> shift) & 255, (background >>> shift) & 255];
    sum |= Math.round(other + (one - other) * part) << shift;
  }
  return sum >>> 0;
}
