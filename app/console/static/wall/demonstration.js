// A minute that shows what the wall is about: offered to all, and urged on who has nothing on it yet.

import { button, make, put } from "../dom.js";

const INTERVAL_MS = 1000;
const FIRST = "demo-ana"; // where a demonstration is under way, this tenant soon has cells

/** @typedef {{running: boolean, by: string | null, captions: {at: number, text: string}[]}} State */

export class Demonstration {
  /**
   * @param {HTMLElement} element
   * @param {import("./view.js").Api} api
   * @param {() => import("./frames.js").Cells | undefined} cells that are on the wall now
   */
  constructor(element, api, cells) {
    this.element = element;
    this.api = api;
    this.cells = cells;
    /** @type {State | null} */
    this.state = null;
    this.isDismissed = false;
    this.wasSeen = false; // one that ran while somebody looked
    this.title = make("strong");
    this.caption = make("p", "caption");
    this.caption.setAttribute("role", "status");
    this.before = document.createElement("details");
    this.said = make("ol", "captions");
    this.before.append(make("summary", "", "What was shown before"), this.said);
    this.problem = make("p", "problem");
    this.problem.setAttribute("role", "alert");
    this.show = button("Show me", () => this.tried(() => this.begin()));
    this.stop = button("End it", () => this.tried(() => this.end()));
    this.dismiss = button("Close", () => {
      this.isDismissed = true;
      this.draw();
    });
    const tools = make("div", "tools");
    tools.append(this.show, this.stop, this.dismiss);
    element.className = "demonstration";
    element.append(this.title, this.caption, tools, this.problem, this.before);
    this.asking = setInterval(() => this.look(), INTERVAL_MS);
    this.draw();
  }

  close() { clearInterval(this.asking); }

  get mayBegin() { return this.api.operator?.role !== "read"; }
  get isEmpty() {
    const cells = this.cells();
    return cells !== undefined && cells.length > 0 && cells.pending === 0 && cells.state.every((one) => one === 0);
  }

  // Ask where one is under way, or may be.
  async look() {
    if (document.hidden) return;
    if (this.state?.running || this.cells()?.owners.includes(FIRST)) {
      try {
        this.take(await this.api.read("/demonstration"));
      } catch { // the wall says what is wrong
      }
    }
    this.draw();
  }

  /** @param {State} state */
  take(state) {
    if (state.running) [this.wasSeen, this.isDismissed] = [true, false];
    this.state = state;
  }

  async begin() {
    this.take(await this.api.send("POST", "/demonstration"));
    this.draw();
  }

  async end() {
    await this.api.send("DELETE", "/demonstration");
    await this.look();
  }

  /** @param {() => Promise<void>} work */
  async tried(work) {
    put(this.problem, "");
    try {
      await work();
    } catch (error) {
      put(this.problem, /** @type {Error} */ (error).message);
    }
  }

  draw() {
    const { isEmpty, mayBegin } = this;
    const isRunning = this.state?.running ?? false;
    const isTold = this.wasSeen && !this.isDismissed;
    const isQuiet = !isRunning && !isTold && !isEmpty; // others' blocks are what one came for
    this.element.hidden = isQuiet && (!mayBegin || this.cells()?.length === 0);
    this.element.classList.toggle("is-running", isRunning);
    this.element.classList.toggle("is-quiet", isQuiet);
    this.title.hidden = this.caption.hidden = isQuiet;
    put(this.show, isEmpty ? "Show me" : "Show me a demonstration");
    this.show.classList.toggle("primary", isEmpty);
    put(this.title, isRunning || isTold ? "A demonstration" : "No blocks are used yet.");
    const captions = isRunning || isTold ? this.state?.captions ?? [] : [];
    const last = captions.at(-1)?.text;
    put(this.caption, last ?? (isRunning ? "It begins." : mayBegin
      ? "Three tenants, one minute, a small part of the cache: see what is shared, forked, preempted and evicted. Nothing is kept, and nothing billed."
      : "They appear as soon as somebody asks."));
    const earlier = captions.slice(0, -1);
    if (this.said.childElementCount !== earlier.length) {
      this.said.replaceChildren(...earlier.map(({ text }) => make("li", "", text)));
    }
    this.before.hidden = earlier.length === 0;
    this.show.hidden = isRunning || !mayBegin;
    this.stop.hidden = !isRunning || !mayBegin;
    this.dismiss.hidden = isRunning || !isTold;
  }
}
