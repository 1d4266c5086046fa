// One replica's wall: its cells live, what they are in words, and the requests that lean on them.

import { fill, put, rest } from "../dom.js";
import { addressOf, link } from "./addresses.js";
import { Disk } from "./disk.js";
import { Cells, HELD, framesOf } from "./frames.js";
import { History } from "./past/history.js";
import { Legend } from "./legend.js";
import { Picture } from "./picture.js";
import { Requests } from "./requests.js";
import { Timeline, evictions } from "./past/timeline.js";
import { cellInWords, ownerOf, tileInWords } from "./words.js";
import { Zoom } from "./zoom.js";

const RETRY_MS = 2000;
const COUNT_MS = 500;
const NOTE_MS = 1000;
const MARKUP = `
<div class="tools">
  <label>Colours <select name="colours"><option value="kinds">what a block is</option>
    <option value="owners">whose it is</option></select></label>
  <label>Tenant <select name="only"><option value="">all</option></select></label>
  <span class="alone" hidden></span>
  <p class="news" role="status"></p>
</div>
<p class="loading hint" role="status">Loading the blocks…</p>
<ul class="legend"></ul>
<div class="zoom tools" hidden></div>
<div class="cells"><canvas tabindex="0" role="img"
  aria-label="KV blocks, one cell each; arrow keys choose one"></canvas><i class="grid" hidden></i><svg
  class="chain" aria-hidden="true" hidden></svg><i class="mark" hidden></i></div>
<div class="timeline"></div>
<p class="detail" role="status">Point at a block, or choose one by the arrow keys.</p>
<p class="whose" hidden></p>
<p class="summary"></p>
<div class="disk" hidden></div>
<div class="leaning"></div>`;

export class Wall {
  /**
   * @param {import("./view.js").Api} api
   * @param {HTMLElement} element
   * @param {number} replica
   * @param {(count: number) => void} heard is told how many replicas there are
   */
  constructor(api, element, replica, heard) {
    this.api = api;
    this.element = element;
    this.replica = replica;
    this.heard = heard;
    fill(this.element, MARKUP);
    this.cells = new Cells(); // as they are now; the picture may show them as they were
    this.canvas = /** @type {HTMLCanvasElement} */ (this.part("canvas"));
    this.part(".summary").id = replica === 0 ? "wall-summary" : `wall-summary-${replica}`;
    this.canvas.setAttribute("aria-describedby", this.part(".summary").id);
    this.picture = new Picture(this.canvas, this.cells);
    /** @type {number | null} */
    this.chosen = null; // a cell
    this.isDrawing = false;
    this.hasNews = false;
    this.ending = new AbortController();
    /** @type {AbortController | null} */
    this.reading = null;
    this.legend = new Legend(this.part(".legend"), this.part(".summary"), this.choice("only"), this.picture);
    this.disk = new Disk(this.part(".disk"), this.picture);
    const outline = /** @type {SVGElement} */ (/** @type {unknown} */ (this.part(".chain")));
    this.requests = new Requests(this.part(".leaning"), outline, this.picture, this.ending.signal);
    this.history = new History();
    const look = /** @param {number | null} at */ (at) => this.look(at);
    this.timeline = new Timeline(this.part(".timeline"), this.history, look, this.ending.signal);
    this.zoom = new Zoom(this.part(".zoom"), this.picture, () => this.layOut(), this.ending.signal);
    /** @type {Set<string>} */
    this.preempted = new Set(); // requests, when they were last told
    this.listen();
    this.follow();
  }

  /** @param {string} name */
  part(name) { return /** @type {HTMLElement} */ (this.element.querySelector(name)); }

  /** @param {string} name */
  choice(name) { return /** @type {HTMLSelectElement} */ (this.element.querySelector(`[name=${name}]`)); }

  close() {
    this.ending.abort();
    this.reading?.abort();
    clearInterval(this.counting);
    clearInterval(this.noting);
    this.sizes?.disconnect();
    this.element.replaceChildren();
  }

  /**
   * Show a tenant's cells and requests alone, and one of these; without any, all.
   * @param {string[]} path
   */
  visit([tenant = "", request = ""]) {
    const chooser = this.choice("only");
    if (![...chooser.options].some(({ value }) => value === tenant)) chooser.add(new Option(tenant));
    chooser.value = tenant;
    const alone = this.part(".alone");
    alone.hidden = tenant === "";
    alone.replaceChildren(link(`${tenant}'s record`, `#tenants/${encodeURIComponent(tenant)}`), " ", link("Show all", "#wall"));
    this.requests.narrow(tenant || null, request || null);
    if (this.picture.only === (tenant || null)) return;
    this.picture.only = tenant || null;
    this.layOut();
  }

  listen() {
    const { signal } = this.ending;
    this.sizes = new ResizeObserver(() => this.layOut());
    this.sizes.observe(this.part(".cells"));
    this.counting = setInterval(() => this.count(), COUNT_MS);
    this.noting = setInterval(() => this.note(), NOTE_MS);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.picture.recolour();
      this.layOut();
    }, { signal });
    document.addEventListener("visibilitychange", () => this.follow(), { signal });
    this.choice("colours").addEventListener("change", () => {
      this.picture.byOwner = this.choice("colours").value === "owners";
      this.layOut();
    }, { signal });
    this.choice("only").addEventListener("change", () => {
      const { value } = this.choice("only");
      location.hash = value ? addressOf(value) : "#wall";
    }, { signal });
    this.canvas.addEventListener("pointermove", (event) => {
      const cell = this.picture.cellAt(event.offsetX, event.offsetY);
      if (cell !== null) this.choose(cell);
    }, { signal });
    this.canvas.addEventListener("click", (event) => {
      const cell = this.picture.cellAt(event.offsetX, event.offsetY);
      if (cell !== null) this.zoom.enter(cell);
    }, { signal });
    this.canvas.addEventListener("keydown", (event) => this.step(event), { signal });
  }

  // Read the stream while the page is seen; what was read before is not waited for.
  async follow() {
    this.reading?.abort();
    if (document.hidden) return;
    const reading = (this.reading = new AbortController());
    while (!reading.signal.aborted) {
      const streaming = new AbortController();
      try {
        const stream = await this.api.get(`/wall?replica=${this.replica}`, reading.signal);
        this.tell("");
        const both = AbortSignal.any([reading.signal, streaming.signal]);
        this.requests.follow(this.api, this.replica, both, (answer) => this.hear(answer));
        for await (const frame of framesOf(stream)) this.take(frame);
      } catch (error) {
        if (reading.signal.aborted) return;
        this.part(".loading").hidden = true;
        this.tell(`Not shown right now: ${/** @type {Error} */ (error).message} It is tried again.`);
      } finally {
        streaming.abort();
        this.history.stop(performance.now());
      }
      await rest(RETRY_MS);
    }
  }

  /** @param {Uint8Array} frame */
  take(frame) {
    /** @type {[first: number, count: number][]} */
    const changed = [];
    this.part(".loading").hidden = true;
    const now = performance.now(), { cells } = this;
    const isAnew = cells.take(frame, now, (first, count, state, owner) => {
      changed.push([first, count]);
      this.timeline.evicted += evictions(cells, first, count, state, owner);
    });
    this.history.take(frame, now, cells);
    if (this.timeline.at !== null) return;
    if (isAnew) this.layOut();
    else for (const [first, count] of changed) this.picture.paint(first, count);
    const { chosen } = this;
    if (chosen !== null && changed.some(([first, count]) => first <= chosen && chosen < first + count)) this.choose(chosen);
    this.hasNews = true;
    this.draw();
  }

  /**
   * An answer about requests has come.
   * @param {import("./requests.js").Answer} answer
   */
  hear({ requests, replicas, on_disk: onDisk }) {
    const preempted = requests.filter(({ state }) => state === "preempted").map(({ id }) => id);
    this.timeline.preempted += preempted.filter((id) => !this.preempted.has(id)).length;
    this.preempted = new Set(preempted);
    if (this.disk.take(onDisk)) this.hasNews = true;
    this.describe();
    this.heard(replicas);
  }

  /**
   * Show the cells as they were, or as they are.
   * @param {number | null} at
   */
  look(at) {
    const { picture } = this, { length } = picture.cells;
    picture.cells = (at === null ? null : this.history.look(at)) ?? this.cells;
    this.requests.isPast = at !== null;
    if (picture.cells.length !== length) {
      this.layOut();
      return;
    }
    picture.paint(0, length);
    this.hasNews = true;
    this.requests.draw();
    this.describe();
    this.draw();
  }

  note() {
    const { cells } = this;
    let used = 0, cached = 0;
    for (const state of cells.state) {
      if (state & HELD) used++;
      else if (state) cached++;
    }
    this.timeline.note(performance.now(), used / Math.max(1, cells.length), cached / Math.max(1, cells.length));
  }

  layOut() {
    this.picture.layOut(this.part(".cells").clientWidth);
    this.disk.draw();
    this.picture.line(this.part(".grid"));
    this.zoom?.draw();
    this.hasNews = true;
    this.draw();
    this.requests.draw();
    if (this.chosen !== null) this.choose(this.chosen);
  }

  draw() {
    if (this.isDrawing) return;
    this.isDrawing = true;
    requestAnimationFrame(() => {
      this.isDrawing = false;
      this.picture.flush();
    });
  }

  /** @param {KeyboardEvent} event */
  step(event) {
    const { columns, cells, perTile } = this.picture;
    if (event.key === "Enter") this.zoom.enter(this.chosen ?? 0);
    if (event.key === "Escape") this.zoom.leave();
    /** @type {Record<string, number>} */
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    const far = steps[event.key];
    if (far === undefined || cells.length === 0) return;
    event.preventDefault();
    const next = this.chosen === null ? this.picture.from : this.chosen + far * perTile;
    const cell = Math.min(cells.length - 1, Math.max(0, next));
    this.zoom.follow(cell);
    this.choose(cell);
  }

  /**
   * Frame a cell, and tell of it in words.
   * @param {number} cell
   */
  choose(cell) {
    if (cell >= this.picture.cells.length) return;
    this.chosen = cell;
    this.requests.look(cell);
    this.picture.frame(this.part(".mark"), cell);
    this.describe();
  }

  describe() {
    const { chosen, picture: { cells } } = this;
    if (chosen === null || chosen >= cells.length) return;
    const isTile = this.picture.perTile > 1;
    const words = isTile ? tileInWords(cells, ...this.picture.tileOf(chosen))
      : cellInWords(cells, chosen, this.timeline.at ?? performance.now()) + this.requests.ofCell(chosen);
    put(this.part(".detail"), words);
    const owner = ownerOf(cells, chosen), whose = this.part(".whose");
    whose.hidden = owner === "" || owner === this.picture.only;
    if (!whose.hidden && whose.dataset.of !== owner) {
      whose.dataset.of = owner;
      whose.replaceChildren(link(`Only ${owner}'s cells and requests`, addressOf(owner)));
    }
  }

  count() {
    if (!this.hasNews) return;
    this.hasNews = false;
    this.legend.draw(this.disk.count);
  }

  /** @param {string} text */
  tell(text) { put(this.part(".news"), text); }
}
