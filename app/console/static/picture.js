// Cells as a picture: a pixel each in a small one, of which the rows that changed are enlarged.

import { FINDABLE, HELD, LEASED, ON_DISK, PINNED, STATE } from "./frames.js";

// What a cell is, in a word; the last that applies. Each has a colour of its name in style.css.
export const KINDS = ["free", "cached", "leased", "state", "in-use", "shared", "pinned", "on-disk"];

const [FREE, CACHED, LEASE, CHECKPOINT, IN_USE, SHARED, PIN, DISK] = KINDS.keys();
const SMALLEST = 2;
const LARGEST = 22;
const TALL = 560; // CSS pixels, where cells of at least SMALLEST allow it
const HUES = 24;
const GRID_PIXELS = 6; // smaller cells have no lines between them

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
  constructor(canvas, cells) {
    this.canvas = canvas;
    this.cells = cells;
    this.byOwner = false; // colours tell owners, not kinds
    this.only = null; // an owner's name: the cells of others are faint
    this.large = canvas.getContext("2d", { alpha: false });
    this.small = document.createElement("canvas").getContext("2d", { alpha: false });
    this.recolour();
    this.layOut(1);
  }

  // Choose the size of cells for a width in CSS pixels, and paint them all.
  layOut(width) {
    const { length, numBlocks, numSlots } = this.cells;
    const wanted = Math.floor(Math.sqrt((width * TALL) / Math.max(1, length)));
    this.size = Math.min(LARGEST, Math.max(SMALLEST, wanted));
    this.columns = Math.max(1, Math.floor(width / this.size));
    const rows = (count) => Math.ceil(count / this.columns);
    this.firstSlotRow = rows(numBlocks) + (numSlots ? 1 : 0);
    this.rows = Math.max(1, this.firstSlotRow + rows(numSlots));
    this.image = this.small.createImageData(this.columns, this.rows);
    this.pixels = new Uint32Array(this.image.data.buffer).fill(this.background);
    this.small.canvas.width = this.columns;
    this.small.canvas.height = this.rows;
    this.canvas.width = this.columns * this.size;
    this.canvas.height = this.rows * this.size;
    this.large.imageSmoothingEnabled = false;
    this.paint(0, length);
    [this.firstRow, this.lastRow] = [0, this.rows - 1];
  }

  // Have an element that lies on the canvas draw lines between cells.
  line(grid) {
    const { size, columns, rows } = this;
    grid.hidden = size < GRID_PIXELS;
    grid.style.width = `${columns * size}px`;
    grid.style.height = `${rows * size}px`;
    grid.style.backgroundSize = `${size}px ${size}px`;
  }

  // Read the colours of the page's style, which may have become dark.
  recolour() {
    const style = getComputedStyle(this.canvas);
    this.colours = KINDS.map((kind) => this.packed(style.getPropertyValue(`--${kind}`)));
    this.background = this.packed(style.getPropertyValue("--ground"));
    this.ofOwners = []; // of each hue: cached, held
    for (let hue = 0; hue < HUES; hue++) {
      // 55 of 360 degrees further each time: neighbours differ, and all are used.
      const angle = (hue * 55) % 360;
      const pair = [`hsl(${angle} 45% 62%)`, `hsl(${angle} 75% 42%)`];
      this.ofOwners.push(pair.map((colour) => this.packed(colour)));
    }
  }

  // A colour as a pixel: ABGR in the order of bytes that all browsers run on.
  packed(colour) {
    this.small.fillStyle = colour.trim() || "#000000";
    const rgb = parseInt(this.small.fillStyle.slice(1), 16);
    return (0xff000000 | ((rgb & 0xff) << 16) | (rgb & 0xff00) | (rgb >> 16)) >>> 0;
  }

  // The colour of an owner's cached cells, as CSS has it.
  cssOf(owner) {
    const pixel = this.ofOwners[this.cells.hues[owner] % HUES][0];
    return `rgb(${pixel & 255} ${(pixel >>> 8) & 255} ${(pixel >>> 16) & 255})`;
  }

  colourOf(cell) {
    const { state, owner, owners, hues } = this.cells;
    let colour = this.colours[kindOf(this.cells, cell)];
    if (this.byOwner && state[cell]) colour = this.ofOwners[hues[owner[cell]] % HUES][state[cell] & HELD];
    if (this.only === null || !state[cell] || owners[owner[cell]] === this.only) return colour;
    return faint(colour, this.background);
  }

  // Note that so many cells have changed; they are seen from the next `flush` on.
  paint(first, count) {
    for (let cell = first; cell < first + count; cell++) {
      this.pixels[this.placeOf(cell)] = this.colourOf(cell);
    }
    if (count === 0) return;
    this.firstRow = Math.min(this.firstRow, this.rowOf(first));
    this.lastRow = Math.max(this.lastRow, this.rowOf(first + count - 1));
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

  placeOf(cell) {
    const slot = cell - this.cells.numBlocks;
    return slot < 0 ? cell : this.firstSlotRow * this.columns + slot;
  }

  rowOf(cell) { return Math.floor(this.placeOf(cell) / this.columns); }

  // The cell at a place of the canvas, in CSS pixels; null where there is none.
  cellAt(x, y) {
    const column = Math.floor(x / this.size);
    const row = Math.floor(y / this.size);
    if (column < 0 || column >= this.columns || row < 0) return null;
    const { numBlocks, length } = this.cells;
    const isSlot = row >= this.firstSlotRow;
    const cell = isSlot
      ? numBlocks + (row - this.firstSlotRow) * this.columns + column
      : row * this.columns + column;
    return cell < (isSlot ? length : numBlocks) ? cell : null;
  }
}

function faint(colour, background) {
  let mixed = 0xff000000;
  for (const shift of [0, 8, 16]) {
    const [one, other] = [(colour >>> shift) & 255, (background >>> shift) & 255];
    mixed |= (other + ((one - other) >> 3)) << shift;
  }
  return mixed >>> 0;
}
