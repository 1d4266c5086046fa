// Where one looks, in the last ten minutes, and what happened in them.

import { fill, put } from "../../dom.js";
import { FINDABLE, HELD } from "../frames.js";
import { KEPT_MS } from "./history.js";

const SECOND = 1000;
const SECONDS = KEPT_MS / SECOND;
const STEP_MS = 200;
const HEIGHT = 28;
const MARK = 6; // of its pixels: what tells of an eviction or preemption
const MARKUP = `
<div class="strip"><canvas width="600" height="28" role="img" aria-label="Blocks in use and cached over ten minutes"></canvas>
<input type="range" name="when" min="0" max="600" step="1" value="600" aria-label="Look back"></div>
<div class="tools"><button type="button" name="play">Pause</button>
<button type="button" name="live" hidden>Live</button>
<label class="speed" hidden>Speed <select name="speed"><option>1</option><option>4</option><option>16</option></select></label>
<span class="when"></span><span class="marks"></span></div>
<p class="past" role="status"></p>`;
const PAST = "You look at the past. What happens now is received meanwhile; the requests below are those of now.";

/** @typedef {{at: number, used: number, cached: number, evicted: number, preempted: number}} Second */

export class Timeline {
  /**
   * @param {HTMLElement} element
   * @param {import("./history.js").History} history
   * @param {(at: number | null) => void} look is told at what one looks: null is now
   * @param {AbortSignal} signal
   */
  constructor(element, history, look, signal) {
    fill(element, MARKUP);
    this.element = element;
    this.history = history;
    this.look = look;
    /** @type {number | null} */
    this.at = null; // by performance.now(); null: live
    this.isPlaying = false;
    /** @type {Second[]} */
    this.seconds = [];
    this.evicted = this.preempted = 0; // since the last second that is noted
    const found = /** @param {string} name */ (name) => /** @type {HTMLElement} */ (element.querySelector(name));
    this.canvas = /** @type {HTMLCanvasElement} */ (found("canvas"));
    this.drawing = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    this.range = /** @type {HTMLInputElement} */ (found("input"));
    this.play = found("[name=play]");
    this.live = found("[name=live]");
    this.speed = /** @type {HTMLSelectElement} */ (found("[name=speed]"));
    this.when = found(".when");
    this.marks = found(".marks");
    this.told = found(".past");
    this.range.addEventListener("input", () => this.move(Number(this.range.value)), { signal });
    this.live.addEventListener("click", () => this.seek(null), { signal });
    this.play.addEventListener("click", () => this.press(), { signal });
    const playing = setInterval(() => this.step(), STEP_MS);
    signal.addEventListener("abort", () => clearInterval(playing));
    this.show();
  }

  /** @param {number} seconds of those that can be looked at */
  move(seconds) {
    this.isPlaying = false;
    this.seek(seconds >= SECONDS ? null : performance.now() - (SECONDS - seconds) * SECOND);
  }

  // Stop where one is, or go on from there.
  press() {
    this.isPlaying = this.at !== null && !this.isPlaying;
    this.seek(this.at ?? performance.now());
  }

  /** @param {number | null} at */
  seek(at) {
    const { first } = this.history;
    this.at = at === null || first === null ? null : Math.max(at, first);
    if (this.at === null) this.isPlaying = false;
    this.look(this.at);
    this.show();
  }

  step() {
    if (!this.isPlaying || this.at === null) return;
    const next = this.at + STEP_MS * Number(this.speed.value);
    this.seek(next >= performance.now() ? null : next);
  }

  /**
   * Note what a second was like: which parts of the blocks were in use and cached.
   * @param {number} now @param {number} used @param {number} cached
   */
  note(now, used, cached) {
    const { evicted, preempted } = this;
    this.evicted = this.preempted = 0;
    this.seconds.push({ at: now, used, cached, evicted, preempted });
    while (this.seconds[0].at < now - KEPT_MS) this.seconds.shift();
    const { first } = this.history;
    if (this.at !== null && first !== null && this.at < first) this.seek(first); // that is forgotten
    else this.show();
  }

  show() {
    const { at } = this;
    const now = performance.now();
    const ago = at === null ? 0 : Math.max(0, Math.round((now - at) / SECOND));
    this.range.value = String(SECONDS - ago);
    const clock = new Date(Date.now() - ago * SECOND).toLocaleTimeString("en-GB");
    const text = at === null ? "live" : `${clock}, ${inWords(ago)} ago`;
    this.range.setAttribute("aria-valuetext", text);
    put(this.when, at === null ? "Live" : text);
    put(this.play, at === null || this.isPlaying ? "Pause" : "Play");
    this.live.hidden = at === null;
    /** @type {HTMLElement} */ (this.speed.parentElement).hidden = at === null;
    this.element.classList.toggle("is-past", at !== null);
    put(this.told, at === null ? "" : PAST);
    const sums = ["evicted", "preempted"].map((kind) => [kind, this.seconds.reduce((sum, one) => sum + one[/** @type {"evicted"} */ (kind)], 0)]);
    put(this.marks, sums.filter(([, sum]) => sum).map(([kind, sum]) => `${sum.toLocaleString("en")} ${kind}`).join(", "));
    this.draw(now);
  }

  /** @param {number} now */
  draw(now) {
    const style = getComputedStyle(this.canvas), { drawing } = this;
    const colour = /** @param {string} name */ (name) => style.getPropertyValue(`--${name}`);
    const parts = /** @type {const} */ ([["used", colour("in-use")], ["cached", colour("cached")]]);
    drawing.fillStyle = colour("free");
    drawing.fillRect(0, 0, SECONDS, HEIGHT);
    for (const one of this.seconds) {
      const x = Math.floor(SECONDS - (now - one.at) / SECOND) - 1;
      let y = HEIGHT;
      for (const [name, fillStyle] of parts) {
        if (!one[name]) continue;
        const height = Math.max(1, Math.round(one[name] * (HEIGHT - MARK)));
        drawing.fillStyle = fillStyle;
        drawing.fillRect(x, (y -= height), 1, height);
      }
      if (!one.evicted && !one.preempted) continue;
      drawing.fillStyle = colour(one.preempted ? "shared" : "pinned");
      drawing.fillRect(x, 0, 2, MARK - 1);
    }
  }
}

/** @param {number} seconds */
function inWords(seconds) {
  return seconds < 60 ? `${seconds} s` : `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

/**
 * How many blocks of a run have lost what they had cached to somebody else, as it becomes this.
 * @param {import("../frames.js").Cells} cells
 * @param {number} first @param {number} count @param {number} state @param {number} owner
 */
export function evictions(cells, first, count, state, owner) {
  if (!(state & HELD)) return 0;
  let sum = 0;
  for (let cell = first; cell < first + count; cell++) {
    const before = cells.state[cell];
    if (before & FINDABLE && !(before & HELD) && (!(state & FINDABLE) || cells.owner[cell] !== owner)) sum++;
  }
  return sum;
}
