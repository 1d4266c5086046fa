// The requests that lean on a wall's blocks (/admin/wall/requests): a list, and one's chain outlined.

import { fill, put, rest } from "./dom.js";

const INTERVAL_MS = 1000;
const REST_MS = 150; // for which a cell has to be chosen before its places are asked
const MOST_NAMED = 3; // requests that are told of one cell
const MARKUP = `
<h2>Requests</h2>
<ul class="requests" role="listbox" tabindex="0" aria-label="Requests"></ul>
<p class="told"></p>`;
const OUTLINE = `<path class="halo"/><path class="found"/><path class="own"/><path class="order"/>`;
const NONE = "No request is there. Those that end are remembered while this page is seen.";
const SOME = "Choose a request, and its chain of blocks is outlined.";
const CAUSES = {
  pressure: "pressure",
  own_quota: "its tenant's own quota of leases",
  expired: "pressure, behind the end of its lease",
  deleted: "a deletion",
};
const REASONS = {
  prompt_ends: () => "all of the prompt that can be found was",
  prefix_shorter_than_block: () => "the prompt is shorter than a block",
  no_state: ({ keys_tokens: tokens }) => `the keys of ${number(tokens)} more were there, but no state behind them`,
  not_asked: () => "it asks nothing of the cache",
  not_used: () => "the next block was there, but had to be computed, or that was faster",
  never_seen: () => "the next block is new: as expected",
  unknown: () => "nothing is known of the next block",
  lost_long_ago: (broke) => `it was here, and was evicted more than ${ago(broke)}. ${advice(broke)}`,
  evicted: (broke) => {
    const { evicted_by: cause, evicted_for: tenant } = broke;
    const by = tenant ? ` for a request of ${tenant}'s` : "";
    return `evicted by ${CAUSES[cause] ?? "something"}${by} ${ago(broke)}${cause === "deleted" ? "" : `. ${advice(broke)}`}`;
  },
};

/** @param {{evicted_at: number}} broke */
function ago({ evicted_at: at }) {
  return `${number(Math.max(0, Math.round(Date.now() / 1000 - at)))} s ago`;
}

// What keeps such blocks, and what more memory would have found of all that is asked.
/** @param {{larger_pool: number}} broke */
function advice({ larger_pool: gain }) {
  const pool = gain >= 0.001 ? `; a pool of twice the size would have found ${(100 * gain).toFixed(1)} % more` : "";
  return `Pin the prompt or lease what is asked again${pool}`;
}

let numLists = 0;

export class Requests {
  // `outline` is an SVG element that lies on the picture's canvas.
  constructor(element, outline, picture, signal) {
    fill(element, MARKUP);
    fill(outline, OUTLINE);
    this.list = element.querySelector(".requests");
    this.told = element.querySelector(".told");
    this.outline = outline;
    this.picture = picture;
    this.name = `requests-${numLists++}`;
    this.told.id = `${this.name}-told`;
    this.list.setAttribute("aria-describedby", this.told.id);
    this.requests = [];
    this.options = new Map(); // by the request's id
    this.chosen = null; // such an id
    this.blockSize = 1;
    this.numNamed = 0;
    this.cell = null; // that is looked at
    this.places = { cell: null, known: [] };
    this.asking = () => {};
    this.list.addEventListener("keydown", (event) => this.step(event), { signal });
    this.list.addEventListener("click", (event) => {
      const option = event.target.closest("[role=option]");
      if (option) this.choose(option.dataset.id === this.chosen ? null : option.dataset.id);
    }, { signal });
    this.take({ requests: [], block_size: 1 });
  }

  // Ask again and again, until the signal; `heard` is called with each answer.
  async follow(api, replica, signal, heard) {
    this.asking = async () => {
      const { cell } = this;
      const of = cell === null ? "" : `&cell=${cell}`;
      try {
        const answer = await api.read(`/wall/requests?replica=${replica}${of}`, signal);
        if (signal.aborted) return;
        this.places = { cell, known: answer.places };
        this.take(answer);
        heard(answer);
      } catch (error) {
        if (!signal.aborted) this.take({ requests: [], block_size: 1 }); // the stream says what is wrong
      }
    };
    while (!signal.aborted) {
      await this.asking();
      await rest(INTERVAL_MS);
    }
  }

  // A cell is looked at: its places are asked soon, if that lasts.
  look(cell) {
    if (cell === this.cell) return;
    this.cell = cell;
    clearTimeout(this.looking);
    this.looking = setTimeout(() => this.asking(), REST_MS);
  }

  take({ requests, block_size: blockSize }) {
    this.blockSize = blockSize;
    // An id may be used again once its request is over: the live one counts, which comes first.
    const known = new Map();
    for (const one of requests) if (!known.has(one.id)) known.set(one.id, one);
    this.requests = [...known.values()];
    if (!known.has(this.chosen)) this.chosen = null;
    for (const [id, option] of this.options) {
      if (known.has(id)) continue;
      option.remove();
      this.options.delete(id);
    }
    this.requests.forEach((one, index) => {
      const option = this.optionOf(one);
      put(option, `${one.id} of ${one.tenant}: ${one.state}, ${inShort(one)}`);
      if (this.list.children[index] !== option) {
        this.list.insertBefore(option, this.list.children[index] ?? null);
      }
    });
    this.show();
  }

  optionOf({ id }) {
    let option = this.options.get(id);
    if (option === undefined) {
      option = document.createElement("li");
      option.setAttribute("role", "option");
      option.setAttribute("aria-selected", "false");
      option.dataset.id = id;
      option.id = `${this.name}-${this.numNamed++}`;
      this.options.set(id, option);
    }
    return option;
  }

  step(event) {
    const last = this.requests.length - 1;
    const at = this.requests.findIndex((one) => one.id === this.chosen);
    const next = {
      ArrowDown: Math.min(last, at + 1), ArrowUp: Math.max(0, at - 1), Home: 0, End: last,
      Enter: Math.max(0, at), Escape: -1,
    }[event.key];
    if (next === undefined || last < 0) return;
    event.preventDefault();
    this.choose(next < 0 ? null : this.requests[next].id);
    this.options.get(this.chosen)?.scrollIntoView({ block: "nearest" });
  }

  choose(id) {
    this.chosen = id;
    this.show();
  }

  show() {
    for (const [id, option] of this.options) {
      const isChosen = String(id === this.chosen);
      if (option.getAttribute("aria-selected") !== isChosen) {
        option.setAttribute("aria-selected", isChosen);
      }
    }
    const active = this.options.get(this.chosen);
    if (active) this.list.setAttribute("aria-activedescendant", active.id);
    else this.list.removeAttribute("aria-activedescendant");
    const one = this.requests.find(({ id }) => id === this.chosen);
    put(this.told, one ? inWords(one, this.picture.cells) : this.requests.length ? SOME : NONE);
    this.draw();
  }

  // Outline the chosen one's cells: whole where they were found, dashed where it has computed them.
  draw() {
    const one = this.requests.find(({ id }) => id === this.chosen);
    this.outline.toggleAttribute("hidden", !one);
    if (!one) return;
    const { columns, rows, size, cells } = this.picture;
    this.outline.setAttribute("width", columns * size);
    this.outline.setAttribute("height", rows * size);
    const numFound = Math.floor((one.cached_tokens ?? 0) / this.blockSize);
    const found = new Set(), own = new Set(), order = [];
    for (const line of one.lines) {
      const known = line.filter((cell) => cell < cells.length);
      known.forEach((cell, index) => (index < numFound ? found : own).add(cell));
      order.push(known.map((cell, index) => `${index ? "L" : "M"}${this.middleOf(cell)}`).join(""));
    }
    const boxes = (some) => [...some].map((cell) => this.boxOf(cell)).join("");
    this.put(".halo", boxes(found) + boxes(own));
    this.put(".found", boxes(found));
    this.put(".own", boxes(own));
    this.put(".order", order.join(""));
  }

  // Of a cell, in words: whose chains it lies in, and where.
  ofCell(cell) {
    const leaning = [];
    for (const one of this.requests) {
      const index = one.lines.map((line) => line.indexOf(cell)).find((at) => at >= 0);
      if (index !== undefined) leaning.push(`${one.id} (${one.state}, block ${number(index + 1)})`);
    }
    const more = leaning.length - MOST_NAMED;
    const named = leaning.slice(0, MOST_NAMED).join(", ");
    const chains = named ? [` In the chain of ${named}${more > 0 ? ` and ${more} more` : ""}.`] : [];
    const places = this.places.cell === cell ? this.places.known.map(placeOf) : [];
    return [...chains, ...places].join("");
  }

  put(name, path) { this.outline.querySelector(name).setAttribute("d", path); }

  boxOf(cell) {
    const { size } = this.picture;
    return `M${this.cornerOf(cell)}h${size}v${size}h-${size}z`;
  }

  middleOf(cell) { return this.cornerOf(cell, this.picture.size / 2); }

  cornerOf(cell, inset = 0) {
    const { columns, size } = this.picture;
    const place = this.picture.placeOf(cell);
    return `${(place % columns) * size + inset} ${Math.floor(place / columns) * size + inset}`;
  }
}

function placeOf(place) {
  const { tenant, conversation } = place;
  const whose = conversation === null ? `a registered prompt that ${tenant} uses` : `${tenant}'s conversation ${conversation}`;
  const age = `begun ${number(Math.round(place.age_seconds))} s ago, used ${number(Math.round(place.idle_seconds))} s ago`;
  return ` Block ${number(place.number)} of ${number(place.blocks)} of ${whose}: `
    + `${age}, hit by ${number(place.hits)} of ${number(place.requests)} requests.`;
}

function inShort(one) {
  const found = one.cached_tokens === null ? "" : `, ${number(one.cached_tokens)} found`;
  return `${number(one.prompt_tokens)} prompt tokens${found}`;
}

function inWords(one, cells) {
  const facts = [inShort(one), blocksOf(one, cells)];
  if (one.broke) facts.push(`broke at token ${number(one.broke.token)}: ${REASONS[one.broke.reason](one.broke)}`);
  return `${one.id} of ${one.tenant}, ${one.state}: ${facts.join("; ")}.`;
}

function blocksOf(one, cells) {
  const told = new Set(one.lines.flat());
  const numSlots = [...told].filter((cell) => cell >= cells.numBlocks).length;
  const isHeld = one.state === "running" || numSlots > 0;
  const facts = [`${number(one.blocks)} blocks`];
  if (one.lines.length > 1) facts[0] = `${one.lines.length} sequences of ${facts[0]}, ${number(told.size)} cells together`;
  if (!isHeld) facts.push(`${number(told.size)} can be found now`);
  if (numSlots) facts.push(`${number(numSlots)} in host memory`);
  facts.push(`${number(one.shared_blocks)} ${isHeld ? "shared with" : "held by"} others`);
  const longest = Math.max(...one.lines.map((line) => line.length));
  if (one.state === "running" && longest < one.blocks) facts.push(`the first ${number(longest)} are outlined`);
  return facts.join(", ");
}

function number(value) { return value.toLocaleString("en"); }
