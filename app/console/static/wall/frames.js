// The stream of /admin/wall (docs/wall.md), taken in as arrays with one place a cell.

export const HELD = 1;
export const FINDABLE = 2;
export const LEASED = 4;
export const PINNED = 8;
const RUN = 16;
export const STATE = 32;
export const ON_DISK = 64; // of cells that are no frame's
const ANEW = 1;
const LENGTH_BYTES = 4;
const TEXT = new TextDecoder();
const BYTES = new TextEncoder();

/** @type {Map<string, number>} */
const HUES = new Map(); // by owner, alike for all pictures of a page

/** Whether a frame has everything forgotten that came before it. @param {Uint8Array} frame */
export const isAnew = (frame) => (frame[0] & ANEW) !== 0;

export class Cells {
  constructor() {
    this.numBlocks = 0;
    this.numSlots = 0;
    this.pending = 0; // cells that are yet to be told
    /** @type {string[]} */
    this.owners = [];
    /** @type {number[]} */
    this.hues = []; // of the owners
    this.state = new Uint8Array(0);
    this.owner = new Uint32Array(0);
    this.references = new Uint32Array(0);
    this.changed = new Float64Array(0); // last told, by performance.now()
  }

  /**
   * What is kept on disk, a cell a block, as many of each owner as `counts` says.
   * @param {Record<string, number>} counts
   */
  static onDisk(counts) {
    const cells = new Cells();
    const shown = Object.entries(counts).toSorted();
    cells.begin(shown.reduce((sum, [, count]) => sum + count, 0), 0);
    let at = 0;
    for (const [name, count] of shown) {
      cells.state.fill(ON_DISK, at, at + count);
      cells.owner.fill(cells.own(name), at, at + count);
      at += count;
    }
    return cells;
  }

  /** @param {number} numBlocks @param {number} numSlots */
  begin(numBlocks, numSlots) {
    this.numBlocks = numBlocks;
    this.numSlots = numSlots;
    this.owners = [];
    this.hues = [];
    this.state = new Uint8Array(numBlocks + numSlots);
    this.owner = new Uint32Array(numBlocks + numSlots);
    this.references = new Uint32Array(numBlocks + numSlots);
    this.changed = new Float64Array(numBlocks + numSlots);
    this.pending = 0;
  }

  get length() { return this.state.length; }

  /**
   * Another owner; returns its place among them.
   * @param {string} name
   */
  own(name) {
    const hue = HUES.get(name) ?? HUES.size;
    HUES.set(name, hue);
    this.hues.push(hue);
    return this.owners.push(name) - 1;
  }

  /**
   * Take a frame over; calls told(first, count, state, owner) for each run of cells before it
   * becomes that. Returns whether all is new.
   * @param {Uint8Array} frame
   * @param {number} now
   * @param {(first: number, count: number, state: number, owner: number) => void} told
   */
  take(frame, now, told) {
    let at = 0;
    const number = () => {
      let value = 0;
      for (let scale = 1; ; scale *= 128) {
        const byte = frame[at++];
        value += (byte & 127) * scale;
        if (byte < 128) return value;
      }
    };
    const isAll = isAnew(frame);
    number();
    const numBlocks = number();
    const numSlots = number();
    if (isAll) this.begin(numBlocks, numSlots);
    this.pending = number();
    for (let left = number(); left > 0; left--) {
      const length = number();
      this.own(TEXT.decode(frame.subarray(at, at + length)));
      at += length;
    }
    for (let cell = 0; at < frame.length;) {
      cell += number();
      const byte = number();
      const count = 1 + (byte & RUN ? number() : 0);
      const state = byte & ~RUN;
      const owner = state ? number() : 0;
      const references = state & HELD ? number() : 0;
      told(cell, count, state, owner);
      this.state.fill(state, cell, cell + count);
      this.owner.fill(owner, cell, cell + count);
      this.references.fill(references, cell, cell + count);
      this.changed.fill(now, cell, cell + count);
      cell += count;
    }
    return isAll;
  }

  /** All of it as a frame that begins anew. */
  frame() {
    /** @type {number[]} */
    const bytes = [];
    /** @param {number} value */
    const put = (value) => {
      let left = value;
      for (; left > 127; left = Math.floor(left / 128)) bytes.push((left & 127) | 128);
      bytes.push(left);
    };
    for (const value of [ANEW, this.numBlocks, this.numSlots, this.pending, this.owners.length]) put(value);
    for (const name of this.owners) {
      const text = BYTES.encode(name);
      put(text.length);
      bytes.push(...text);
    }
    let told = 0; // up to this cell
    for (let cell = 0, count = 1; cell < this.length; cell += count) {
      for (count = 1; this.isAlike(cell, cell + count); count++);
      const state = this.state[cell];
      if (!state) continue; // free, as all are at first
      put(cell - told);
      put(count > 1 ? state | RUN : state);
      if (count > 1) put(count - 1);
      put(this.owner[cell]);
      if (state & HELD) put(this.references[cell]);
      told = cell + count;
    }
    return Uint8Array.from(bytes);
  }

  /** @param {number} cell @param {number} other */
  isAlike(cell, other) {
    return this.state[cell] === this.state[other] && this.owner[cell] === this.owner[other]
      && this.references[cell] === this.references[other];
  }
}

/**
 * The frames of a streamed answer, one by one; empty ones are left out.
 * @param {Response} answer
 */
export async function* framesOf(answer) {
  const reader = /** @type {ReadableStream<Uint8Array<ArrayBuffer>>} */ (answer.body).getReader();
  let held = new Uint8Array(0);
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const joined = new Uint8Array(held.length + value.length);
    joined.set(held);
    joined.set(value, held.length);
    let at = 0;
    while (joined.length - at >= LENGTH_BYTES) {
      const length = new DataView(joined.buffer, at).getUint32(0);
      if (joined.length - at - LENGTH_BYTES < length) break;
      at += LENGTH_BYTES;
      if (length > 0) yield joined.subarray(at, at + length);
      at += length;
    }
    held = joined.slice(at);
  }
}
