// The requests that lean on a wall's blocks (/admin/wall/requests): a list, and one's chain outlined.

import { fill, put, rest } from "../dom.js";
import { actions, addressOf } from "./addresses.js";
import { Chain } from "./chain.js";
import { RequestTable } from "./request_table.js";
import { number } from "./words.js";

/** @typedef {import("./frames.js").Cells} Cells */
/**
 * @typedef {object} Break
 * @property {string} reason
 * @property {number} token
 * @property {number} keys_tokens
 * @property {string} evicted_by
 * @property {number} evicted_at
 * @property {string | null} evicted_for
 * @property {number} larger_pool
 */
/**
 * @typedef {object} WallRequest
 * @property {string} id
 * @property {string} tenant
 * @property {number} asked_at
 * @property {"running" | "waiting" | "preempted" | "finished"} state
 * @property {number} prompt_tokens
 * @property {number | null} cached_tokens
 * @property {Break | null} broke
 * @property {number} blocks
 * @property {number} shared_blocks
 * @property {number[][]} lines
 */
/**
 * @typedef {object} Place
 * @property {string} tenant
 * @property {string | null} conversation
 * @property {number} age_seconds
 * @property {number} idle_seconds
 * @property {number} number
 * @property {number} blocks
 * @property {number} hits
 * @property {number} requests
 */
/** @typedef {{requests: WallRequest[], block_size: number, replicas: number, places: Place[], on_disk: Record<string, number>}} Answer */

const INTERVAL_MS = 1000;
const REST_MS = 150; // for which a cell has to be chosen before its places are asked
const MOST_NAMED = 3; // requests that are told of one cell
const MARKUP = `
<h2>Requests</h2>
<div class="list"></div>
<p class="told"></p>
<p class="about tools" hidden></p>`;
const NONE = "No request is there. Those that end are remembered while this page is seen.";
const FEWER = "No request is like that.";
const SOME = "Choose a request, and its chain of blocks is outlined.";
/** @type {Record<string, string>} */
const CAUSES = {
  pressure: "pressure",
  own_quota: "its tenant's own quota of leases",
  expired: "pressure, behind the end of its lease",
  deleted: "a deletion",
};
/** @type {Record<string, (broke: Break) => string>} */
const REASONS = {
  prompt_ends: () => "all of the prompt that can be found was",
  prefix_shorter_than_block: () => "the prompt is shorter than a block",
  no_state: ({ keys_tokens: tokens }) => `the keys of ${number(tokens)} more were there, but no state behind them`,
  not_asked: () => "it asks nothing of the cache",
  not_used: () => "the next block was there, but had to be computed, or that was faster",
  never_seen: () => "the next block is new: as expected",
  unknown: () => "nothing is known of the next block",
  lost_long_ago: (broke) => `the next block was here, and was evicted more than ${ago(broke)}. ${advice(broke)}`,
  evicted: (broke) => {
    const { evicted_by: cause, evicted_for: tenant } = broke;
    const by = tenant ? `, for a request of ${tenant}'s,` : "";
    return `evicted by ${CAUSES[cause] ?? "something"}${by} ${ago(broke)}${cause === "deleted" ? "" : `. ${advice(broke)}`}`;
  },
};

/** @param {Break} broke */
function ago({ evicted_at: at }) {
  return `${number(Math.max(0, Math.round(Date.now() / 1000 - at)))} s ago`;
}

// What keeps such blocks, and what more memory would have found of all that is asked.
/** @param {Break} broke */
function advice({ larger_pool: gain }) {
  const pool = gain >= 0.001 ? `; a pool of twice the size would have found ${(100 * gain).toFixed(1)} % more` : "";
  return `To keep it: pin the prompt, or lease what is asked again${pool}`;
}

export class Requests {
  /**
   * @param {HTMLElement} element
   * @param {SVGElement} outline lies on the picture's canvas
   * @param {import("./picture.js").Picture} picture
   * @param {AbortSignal} signal
   */
  constructor(element, outline, picture, signal) {
    fill(element, MARKUP);
    this.told = /** @type {HTMLElement} */ (element.querySelector(".told"));
    this.about = /** @type {HTMLElement} */ (element.querySelector(".about"));
    this.picture = picture;
    this.chain = new Chain(outline, picture);
    const list = /** @type {HTMLElement} */ (element.querySelector(".list"));
    this.table = new RequestTable(list, Object.keys(REASONS), () => this.chose(), signal);
    this.told.id = `${this.table.name}-told`;
    this.table.table.setAttribute("aria-describedby", this.told.id);
    /** @type {WallRequest[]} */
    this.requests = [];
    /** @type {string | null} */
    this.wanted = null; // by the address: chosen as soon as it is there
    this.isPast = false; // the picture shows cells as they were
    this.blockSize = 1;
    /** @type {number | null} */
    this.cell = null; // that is looked at
    /** @type {{cell: number | null, known: Place[]}} */
    this.places = { cell: null, known: [] };
    this.asking = async () => {};
    this.take({ requests: [], block_size: 1 });
  }

  /** The one that is chosen. */
  get chosen() { return this.requests.find(({ id }) => id === this.table.chosen); }

  /**
   * Ask again and again, until the signal; `heard` is called with each answer.
   * @param {import("./view.js").Api} api @param {number} replica @param {AbortSignal} signal
   * @param {(answer: Answer) => void} heard
   */
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
      } catch {
        if (!signal.aborted) this.take({ requests: [], block_size: 1 }); // the stream says what is wrong
      }
    };
    while (!signal.aborted) {
      await this.asking();
      await rest(INTERVAL_MS);
    }
  }

  /**
   * A cell is looked at: its places are asked soon, if that lasts.
   * @param {number} cell
   */
  look(cell) {
    if (cell === this.cell) return;
    this.cell = cell;
    clearTimeout(this.looking);
    this.looking = setTimeout(() => this.asking(), REST_MS);
  }

  /**
   * Have those of one tenant alone, and one of them chosen.
   * @param {string | null} tenant @param {string | null} id
   */
  narrow(tenant, id) {
    this.table.only = tenant;
    this.wanted = id;
    this.show();
  }

  /** @param {Pick<Answer, "requests" | "block_size">} answer */
  take({ requests, block_size: blockSize }) {
    this.blockSize = blockSize;
    // An id may be used again once its request is over: the live one counts, which comes first.
    const known = new Map();
    for (const one of requests) if (!known.has(one.id)) known.set(one.id, one);
    this.requests = [...known.values()];
    this.show();
  }

  show() {
    this.table.take(this.requests);
    if (this.wanted !== null && this.table.rows.has(this.wanted)) {
      const { wanted } = this;
      this.wanted = null;
      this.table.choose(wanted);
    } else this.tell();
  }

  chose() {
    const { chosen } = this;
    this.about.hidden = !chosen;
    if (chosen) this.about.replaceChildren(...actions(chosen));
    const { only } = this.table;
    if (only !== null) history.replaceState(null, "", addressOf(only, this.table.chosen));
    this.tell();
  }

  tell() {
    const { chosen } = this;
    const none = this.requests.length === 0 ? NONE : this.table.shown.length === 0 ? FEWER : SOME;
    put(this.told, chosen ? inWords(chosen, this.picture.cells) : none);
    this.draw();
  }

  draw() {
    const { chosen, picture } = this;
    if (!chosen || this.isPast) {
      this.chain.hide();
      return;
    }
    const lines = chosen.lines.map((line) => line.filter((cell) => cell < picture.cells.length));
    this.chain.draw(lines, Math.floor((chosen.cached_tokens ?? 0) / this.blockSize));
  }

  /**
   * Of a cell, in words: whose chains it lies in, and where.
   * @param {number} cell
   */
  ofCell(cell) {
    if (this.isPast) return "";
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
}

/** @param {Place} place */
function placeOf(place) {
  const { tenant, conversation } = place;
  const whose = conversation === null ? `a registered prompt that ${tenant} uses` : `${tenant}'s conversation ${conversation}`;
  const age = `begun ${number(Math.round(place.age_seconds))} s ago, used ${number(Math.round(place.idle_seconds))} s ago`;
  return ` Block ${number(place.number)} of ${number(place.blocks)} of ${whose}: `
    + `${age}, hit by ${number(place.hits)} of ${number(place.requests)} requests.`;
}

/** @param {WallRequest} one */
function inShort(one) {
  const found = one.cached_tokens === null ? "" : `, ${number(one.cached_tokens)} found`;
  return `${number(one.prompt_tokens)} prompt tokens${found}`;
}

/** @param {WallRequest} one @param {Cells} cells */
function inWords(one, cells) {
  const facts = [inShort(one), blocksOf(one, cells)];
  if (one.broke) facts.push(`broke at token ${number(one.broke.token)}: ${REASONS[one.broke.reason](one.broke)}`);
  return `${one.id} of ${one.tenant}, ${one.state}: ${facts.join("; ")}.`;
}

/** @param {WallRequest} one @param {Cells} cells */
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
