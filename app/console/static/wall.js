// The wall: the KV cache live, a cell a block.

import { Disk } from "./disk.js";
import { entry, fill, put, rest } from "./dom.js";
import { Cells, FINDABLE, HELD, LEASED, STATE, framesOf } from "./frames.js";
import { KINDS, Picture, kindOf } from "./picture.js";
import { Replicas } from "./replicas.js";
import { Requests } from "./requests.js";

const RETRY_MS = 2000;
const COUNT_MS = 500;
const MOST_OWNERS = 8; // named beside the picture
const MARKUP = `
<div class="tools">
  <label>Colours <select name="colours"><option value="kinds">what a block is</option>
    <option value="owners">whose it is</option></select></label>
  <label>Tenant <select name="only"><option value="">all</option></select></label>
  <p class="news" role="status"></p>
</div>
<ul class="legend"></ul>
<div class="cells"><canvas tabindex="0" role="img"
  aria-label="KV blocks, one cell each; arrow keys choose one"></canvas><i class="grid" hidden></i><svg
  class="chain" aria-hidden="true" hidden></svg><i class="mark" hidden></i></div>
<p class="detail" role="status">Point at a block, or choose one by the arrow keys.</p>
<p class="summary"></p>
<div class="disk" hidden></div>
<div class="leaning"></div>`;

export function mount(element, api) {
  return new Replicas(element, (...where) => new Wall(api, ...where));
}

class Wall {
  constructor(api, element, replica, heard) {
    this.api = api;
    this.element = element;
    this.replica = replica;
    this.heard = heard; // told how many replicas there are
    fill(this.element, MARKUP);
    this.part = (name) => element.querySelector(name);
    this.cells = new Cells();
    this.canvas = this.part("canvas");
    this.part(".summary").id = replica === 0 ? "wall-summary" : `wall-summary-${replica}`;
    this.canvas.setAttribute("aria-describedby", this.part(".summary").id);
    this.picture = new Picture(this.canvas, this.cells);
    this.chosen = null;
    this.isDrawing = false;
    this.ending = new AbortController();
    this.reading = null;
    this.disk = new Disk(this.part(".disk"), this.picture);
    const leaning = this.part(".leaning");
    this.requests = new Requests(leaning, this.part(".chain"), this.picture, this.ending.signal);
    this.listen();
    this.follow();
  }

  close() {
    this.ending.abort();
    this.reading?.abort();
    clearInterval(this.counting);
    this.sizes.disconnect();
    this.element.replaceChildren();
  }

  listen() {
    const { signal } = this.ending;
    const on = (target, kind, heard) => target.addEventListener(kind, heard, { signal });
    this.sizes = new ResizeObserver(() => this.layOut());
    this.sizes.observe(this.part(".cells"));
    this.counting = setInterval(() => this.count(), COUNT_MS);
    on(matchMedia("(prefers-color-scheme: dark)"), "change", () => {
      this.picture.recolour();
      this.layOut();
    });
    on(document, "visibilitychange", () => this.follow());
    on(this.part("[name=colours]"), "change", (event) => {
      this.picture.byOwner = event.target.value === "owners";
      this.layOut();
    });
    on(this.part("[name=only]"), "change", (event) => {
      this.picture.only = event.target.value || null;
      this.layOut();
    });
    on(this.canvas, "pointermove", (event) => {
      const cell = this.picture.cellAt(event.offsetX, event.offsetY);
      if (cell !== null) this.choose(cell);
    });
    on(this.canvas, "keydown", (event) => this.step(event));
  }

  // Read the stream while the page is seen; what was read before is not waited for.
  async follow() {
    this.reading?.abort();
    if (document.hidden) return;
    const reading = (this.reading = new AbortController());
    while (!reading.signal.aborted) {
      const streaming = new AbortController();
      try {
        const answer = await this.api.get(`/wall?replica=${this.replica}`, reading.signal);
        this.tell("");
        const both = AbortSignal.any([reading.signal, streaming.signal]);
        this.requests.follow(this.api, this.replica, both, (answer) => this.hear(answer));
        for await (const frame of framesOf(answer)) this.take(frame);
      } catch (error) {
        if (reading.signal.aborted) return;
        this.tell(`Not shown right now: ${error.message}`);
      } finally {
        streaming.abort();
      }
      await rest(RETRY_MS);
    }
  }

  take(frame) {
    const changed = [];
    const isAnew = this.cells.take(frame, performance.now(), (...run) => changed.push(run));
    if (isAnew) this.layOut();
    else for (const [first, count] of changed) this.picture.paint(first, count);
    const isChosen = ([first, count]) => first <= this.chosen && this.chosen < first + count;
    if (this.chosen !== null && changed.some(isChosen)) this.choose(this.chosen);
    this.hasNews = true;
    this.draw();
  }

  // An answer about requests has come.
  hear({ replicas, on_disk: onDisk }) {
    if (this.disk.take(onDisk)) this.hasNews = true;
    this.describe();
    this.heard(replicas);
  }

  layOut() {
    this.picture.layOut(this.part(".cells").clientWidth);
    this.disk.draw();
    this.picture.line(this.part(".grid"));
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

  step(event) {
    const { columns } = this.picture;
    const far = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    if (far === undefined || this.cells.length === 0) return;
    event.preventDefault();
    const next = this.chosen === null ? 0 : this.chosen + far;
    this.choose(Math.min(this.cells.length - 1, Math.max(0, next)));
  }

  // Frame a cell, and tell of it in words.
  choose(cell) {
    if (cell >= this.cells.length) return;
    this.chosen = cell;
    this.requests.look(cell);
    const place = this.picture.placeOf(cell);
    const { columns, size } = this.picture;
    const mark = this.part(".mark");
    mark.hidden = false;
    mark.style.width = mark.style.height = `${size}px`;
    mark.style.left = `${(place % columns) * size}px`;
    mark.style.top = `${Math.floor(place / columns) * size}px`;
    this.describe();
  }

  describe() {
    const { chosen } = this;
    if (chosen === null || chosen >= this.cells.length) return;
    put(this.part(".detail"), inWords(this.cells, chosen) + this.requests.ofCell(chosen));
  }

  count() {
    if (!this.hasNews) return;
    this.hasNews = false;
    const kinds = KINDS.map(() => 0);
    const owned = this.cells.owners.map(() => 0);
    for (let cell = 0; cell < this.cells.length; cell++) {
      kinds[kindOf(this.cells, cell)]++;
      if (this.cells.state[cell]) owned[this.cells.owner[cell]]++;
    }
    kinds[KINDS.length - 1] = this.disk.count;
    const owners = this.cells.owners.map((name, index) => [name, owned[index], index]);
    owners.sort((one, other) => other[1] - one[1]);
    const { picture } = this;
    const legend = picture.byOwner
      ? owners.slice(0, MOST_OWNERS).map(([name, count, index]) => entry(name || "nobody", picture.cssOf(index), count.toLocaleString("en")))
      : KINDS.map((kind, index) => entry(kind.replace("-", " "), `var(--${kind})`, kinds[index].toLocaleString("en")));
    if (!picture.byOwner) {
      for (const rare of ["state", "on-disk"]) legend[KINDS.indexOf(rare)].hidden = kinds[KINDS.indexOf(rare)] === 0;
    }
    this.part(".legend").replaceChildren(...legend);
    this.offer(owners);
    put(this.part(".summary"), summary(this.cells, kinds, owners));
  }

  // Let one of the owners be chosen.
  offer(owners) {
    const chooser = this.part("[name=only]");
    const known = new Set([...chooser.options].map((option) => option.value));
    for (const [name] of owners) {
      if (name !== "" && !known.has(name)) chooser.add(new Option(name));
    }
  }

  tell(text) { put(this.part(".news"), text); }
}

function inWords(cells, cell) {
  const state = cells.state[cell];
  const isSlot = cell >= cells.numBlocks;
  const name = isSlot ? `Host slot ${cell - cells.numBlocks}` : `Block ${cell}`;
  if (!state) return `${name}: free.`;
  const facts = [KINDS[kindOf(cells, cell)].replace("-", " ")];
  if (state & HELD) facts.push(`held by ${cells.references[cell]}`);
  facts.push(state & FINDABLE ? "can be found by its hash" : "not full yet, or not cached");
  if (state & LEASED && !facts.includes("leased")) facts.push("leased");
  if (state & STATE && !facts.includes("state")) facts.push("a state");
  const seconds = Math.floor((performance.now() - cells.changed[cell]) / 1000);
  const owner = cells.owners[cells.owner[cell]];
  return `${name} of ${owner || "nobody"}: ${facts.join(", ")}; seen unchanged for ${seconds} s.`;
}

function summary(cells, kinds, owners) {
  const told = KINDS.slice(0, -1).filter((kind, index) => kind !== "state" || kinds[index] > 0);
  const counts = told.map((kind) => `${kinds[KINDS.indexOf(kind)]} ${kind.replace("-", " ")}`);
  const shown = owners.filter(([, count]) => count > 0).slice(0, MOST_OWNERS);
  const parts = shown.map(([name, count]) => `${name || "nobody"} ${count}`);
  const slots = cells.numSlots ? ` and ${cells.numSlots} host slots` : "";
  const waiting = cells.pending ? ` ${cells.pending} cells are yet to be told.` : "";
  const who = parts.length ? ` By owner: ${parts.join(", ")}.` : "";
  return `${cells.numBlocks} blocks${slots}: ${counts.join(", ")}.${who}${waiting}`;
}
