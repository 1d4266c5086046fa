// The last ten minutes of a wall's stream: a whole picture twice a minute, and the frames behind it.

import { Cells, isAnew } from "../frames.js";

export const KEPT_MS = 600_000;
export const MOST_BYTES = 12 * 2 ** 20; // ten minutes of 18 KB a second; of more, less than ten minutes
const WHOLE_MS = 30_000;
const BYTES_A_FRAME = 200; // beside what is in it

/**
 * What was told from a whole picture on, until the next one; or until nobody looked any more.
 * @typedef {object} Segment
 * @property {number} from
 * @property {number | null} to
 * @property {{at: number, bytes: Uint8Array}[]} frames
 * @property {number} size
 */

export class History {
  constructor() {
    /** @type {Segment[]} */
    this.segments = [];
    this.bytes = 0;
    /** @type {{segment: Segment, next: number, at: number, cells: Cells} | null} */
    this.replay = null;
  }

  /** Since when it is known; null: nothing is. */
  get first() { return this.segments.length ? this.segments[0].from : null; }

  /**
   * Keep a frame that `cells` have just taken over.
   * @param {Uint8Array} frame @param {number} now @param {Cells} cells
   */
  take(frame, now, cells) {
    const last = this.segments.at(-1);
    if (isAnew(frame)) this.begin(now, frame.slice());
    else if (last === undefined || last.to !== null || now - last.from >= WHOLE_MS) this.begin(now, cells.frame());
    else this.keep(last, now, frame.slice());
    while (this.segments.length > 1 && (this.bytes > MOST_BYTES || this.segments[1].from < now - KEPT_MS)) {
      this.bytes -= /** @type {Segment} */ (this.segments.shift()).size;
    }
  }

  /**
   * From now on nothing is known until the next frame.
   * @param {number} now
   */
  stop(now) {
    const last = this.segments.at(-1);
    if (last) last.to ??= now;
  }

  /** @param {number} now @param {Uint8Array} whole */
  begin(now, whole) {
    this.stop(now);
    const segment = { from: now, to: null, frames: [], size: 0 };
    this.segments.push(segment);
    this.keep(segment, now, whole);
  }

  /** @param {Segment} segment @param {number} at @param {Uint8Array} bytes */
  keep(segment, at, bytes) {
    segment.frames.push({ at, bytes });
    segment.size += bytes.length + BYTES_A_FRAME;
    this.bytes += bytes.length + BYTES_A_FRAME;
  }

  /**
   * The cells as they were; what is asked for later changes them. Null where nothing is known.
   * @param {number} at
   */
  look(at) {
    const segment = this.segments.findLast(({ from }) => from <= at) ?? this.segments[0];
    if (segment === undefined) return null;
    if (this.replay === null || this.replay.segment !== segment || this.replay.at > at) {
      this.replay = { segment, next: 0, at, cells: new Cells() };
    }
    const { replay } = this;
    replay.at = at;
    for (; replay.next < segment.frames.length; replay.next++) {
      const frame = segment.frames[replay.next];
      if (frame.at > at && replay.next > 0) break;
      replay.cells.take(frame.bytes, frame.at, () => {});
    }
    return replay.cells;
  }
}
