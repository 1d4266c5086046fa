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

const HUES = new Map(); // by owner, alike for all pictures of a page

export class Cells {
  constructor() { this.begin(0, 0); }

  // What is kept on disk, a cell a block, as many of each owner as `counts` says.
  static onDisk(counts) {
    const cells = new Cells();
    const shown = Object.entries(counts).sort();
    cells.begin(shown.reduce((sum, [, count]) => sum + count, 0), 0);
    let at = 0;
    for (const [name, count] of shown) {
      cells.state.fill(ON_DISK, at, at + count);
      cells.owner.fill(cells.own(name), at, at + count);
      at += count;
    }
    return cells;
  }

  begin(numBlocks, numSlots) {
    this.numBlocks = numBlocks;
    this.numSlots = numSlots;
    this.owners = [];
    this.hues = []; // of the owners
    this.state = new Uint8Array(numBlocks + numSlots);
    this.owner = new Uint32Array(numBlocks + numSlots);
    this.references = new Uint32Array(numBlocks + numSlots);
    this.changed = new Float64Array(numBlocks + numSlots); // last told, by performance.now()
    this.pending = 0;
  }

  get length() { return this.state.length; }

  // Another owner; returns its place among them.
  own(name) {
    if (!HUES.has(name)) HUES.set(name, HUES.size);
    this.hues.push(HUES.get(name));
    return this.owners.push(name) - 1;
  }

  // Take a frame over; calls told(first, count) for each run of cells. Returns whether all is new.
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
    const isAnew = (number() & ANEW) !== 0;
    const numBlocks = number();
    const numSlots = number();
    if (isAnew) this.begin(numBlocks, numSlots);
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
      this.state.fill(state, cell, cell + count);
      this.owner.fill(owner, cell, cell + count);
      this.references.fill(references, cell, cell + count);
      this.changed.fill(now, cell, cell + count);
      told(cell, count);
      cell += count;
    }
    return isAnew;
  }
}

// The frames of a streamed answer, one by one; empty ones are left out.
export async function* framesOf(answer) {
  const reader = answer.body.getReader();
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
