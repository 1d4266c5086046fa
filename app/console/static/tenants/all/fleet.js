// All tenants and share groups: their records, what they do now, and what they used this month.

import { Span, parsed } from "../../load/metrics.js";
import { rowOf } from "./rows.js";

const FIRST = 100; // records that are asked for first, so that there is something soon
const PAGE = 1000;

export class Fleet {
  /** @param {import("../../api.js").Api} api */
  constructor(api) {
    this.api = api;
    this.records = /** @type {Map<string, any>} */ (new Map());
    this.live = /** @type {Map<string, any>} */ (new Map());
    this.used = /** @type {Map<string, any>} */ (new Map());
    this.rates = /** @type {Map<string, number | null>} */ (new Map());
    this.currency = /** @type {string | null} */ (null);
    this.isWhole = false; // all records have come once
    this.last = /** @type {{ samples: any, now: number } | null} */ (null);
  }

  get groups() {
    return [...this.records.keys()].filter((id) => id.startsWith("@")).map((id) => id.slice(1));
  }

  /** @returns {import("./rows.js").Row[]} */
  rows() {
    const ids = new Set([...this.records.keys(), ...this.live.keys()]);
    return [...ids].map((id) => rowOf(
      id, this.records.get(id), this.live.get(id), this.used.get(id), this.rates.get(id) ?? null,
    ));
  }

  // The records, in pages; while they come for the first time, those that are there are shown.
  /** @param {AbortSignal} signal @param {() => void} came */
  async load(signal, came) {
    const found = new Map();
    if (!this.isWhole) this.records = found;
    const all = async (/** @type {string} */ what, /** @type {string} */ prefix) => {
      for (let after = "", limit = FIRST; after !== null; limit = PAGE) {
        const page = await this.api.read(`/${what}?limit=${limit}${after && `&after=${after}`}`, signal);
        for (const one of page[what]) found.set(prefix + one.id, one);
        after = page.next;
        if (!this.isWhole) came();
      }
    };
    await Promise.all([all("tenants", ""), all("groups", "@")]);
    this.records = found;
    this.isWhole = true;
    came();
  }

  /** @param {AbortSignal} signal */
  async look(signal) {
    const [live, text] = await Promise.all([this.api.read("/live", signal), this.api.metrics(signal)]);
    this.live = new Map(live.tenants.map((/** @type {any} */ one) => [one.id, one]));
    const samples = parsed(text);
    const now = performance.now() / 1000;
    if (this.last) this.rates = ratesOf(new Span(this.last.samples, samples, now - this.last.now));
    this.last = { samples, now };
  }

  /** @param {AbortSignal} signal */
  async count(signal) {
    const used = new Map();
    for (let after = ""; after !== null;) {
      const page = await this.api.read(`/usage?format=json${after && `&after=${after}`}`, signal);
      for (const one of page.usage) used.set(one.tenant, one);
      this.currency = page.currency;
      after = page.next;
    }
    this.used = used;
  }
}

// Tokens of answers a second, of the busiest tenants.
/** @param {Span} span @returns {Map<string, number | null>} */
function ratesOf(span) {
  const tenants = /** @type {string[]} */ (span.labelled("generation_tokens_total", "tenant"));
  return new Map(tenants.map((tenant) => [tenant, span.rate("generation_tokens_total", { tenant })]));
}
