// What the engine bears, over the last minutes. `mount(element, api)` returns what takes it away.

import { Span, minus, parsed, times } from "./metrics.js";
import { ReplicaTable } from "./replicas.js";
import { MS, NUMBER, PERCENT } from "./said.js";
import { MOST, Sharing } from "./sharing.js";
import { fill, make, part, rest } from "../dom.js";
import { Plot } from "../plot.js";

const POLL_MS = 2000;
const SPAN_SECONDS = 20; // that rates and percentiles are taken over
const GAP_SECONDS = 10; // nothing is said of what was not looked at for so long
const KEPT = 300; // polls: ten minutes
const MARKUP = `
<p class="news" role="status"></p>
<section class="sharing" aria-label="What sharing is worth"></section>
<h2>Over the last minutes</h2>
<p class="hint">Rates and percentiles are those of the last ${SPAN_SECONDS} seconds.</p>
<section class="replicas" aria-label="Replicas"></section>
<div class="plots"></div>`;

/**
 * @typedef {typeof import("../api.js").api} Api
 * @typedef {import("./metrics.js").Samples} Samples
 * @typedef {import("./said.js").Known} Known
 * @typedef {object} Lines of one plot: what tells each line's value, and how it is said
 * @property {string} title
 * @property {(value: any) => string} shown
 * @property {Record<string, (span: Span) => Known>} lines
 */

/** @param {string} title @param {string} name @returns {Lines} */
const quantiles = (title, name) => ({
  title,
  shown: MS,
  lines: Object.fromEntries([50, 95, 99].map((percent) => [
    `p${percent}`,
    (span) => times(span.quantile(name, percent / 100), 1000),
  ])),
});
/** @type {Lines[]} */
const PLOTS = [
  {
    title: "Tokens a second",
    shown: NUMBER,
    lines: {
      computed: (span) => minus(span.rate("prompt_tokens_total"), span.rate("prompt_tokens_cached_total")),
      cached: (span) => span.rate("prompt_tokens_cached_total"),
      "of answers": (span) => span.rate("generation_tokens_total"),
    },
  },
  {
    title: "Requests",
    shown: NUMBER,
    lines: {
      "answered a second": (span) => span.rate("request_success_total"),
      running: (span) => span.now("num_requests_running"),
      waiting: (span) => span.now("num_requests_waiting"),
    },
  },
  quantiles("Time to the first token", "time_to_first_token_seconds"),
  quantiles("Time between tokens", "inter_token_latency_seconds"),
  quantiles("Time in the queue", "request_queue_time_seconds"),
  {
    title: "Steps: part of the time",
    shown: PERCENT,
    lines: Object.fromEntries(["plan", "compute", "commit"].map((name) => [
      name,
      (span) => times(span.rate("step_seconds_total", { part: name }), 100),
    ])),
  },
  {
    title: "Cache",
    shown: PERCENT,
    lines: {
      "prompt tokens found": (span) => times(span.ratio("prefix_cache_hits_total", "prefix_cache_queries_total"), 100),
      "blocks in use": (span) => times(span.now("kv_cache_usage_perc"), 100),
    },
  },
  {
    title: "Preemptions a second",
    shown: NUMBER,
    lines: Object.fromEntries(["recompute", "swap"].map((kind) => [
      kind,
      (span) => span.rate("num_preemptions_total", { kind }),
    ])),
  },
];

/** @param {HTMLElement} element @param {Api} api */
export function mount(element, api) {
  return new Load(element, api);
}

class Load {
  /** @param {HTMLElement} element @param {Api} api */
  constructor(element, api) {
    this.api = api;
    this.element = element;
    fill(element, MARKUP);
    /** @type {{samples: Samples, now: number}[]} */
    this.told = []; // what was told, and when, within SPAN_SECONDS
    /** @type {{at: number, values: Known[][]}[]} */
    this.data = []; // of all lines: times, and values by plot and line
    this.plots = PLOTS.map(({ title, lines, shown }) =>
      new Plot(this.place(), { title, lines: Object.keys(lines), shown }));
    this.sharing = new Sharing(part(element, ".sharing"));
    this.replicas = new ReplicaTable(part(element, ".replicas"));
    const title = "Prompt blocks that a pool of another size would find";
    this.curve = new Plot(this.place(), {
      title, lines: ["found here"], shown: PERCENT, isOverTime: false, axis: "blocks",
    });
    this.ending = new AbortController();
    const { signal } = this.ending;
    const redraw = () => [...this.plots, this.curve].forEach((plot) => plot.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw, { signal });
    this.sizes = new ResizeObserver(redraw);
    this.sizes.observe(part(element, ".plots"));
    this.poll();
  }

  place() {
    const place = make("div");
    part(this.element, ".plots").append(place);
    return place;
  }

  close() {
    this.ending.abort();
    this.sizes.disconnect();
    for (const plot of [...this.plots, this.curve]) plot.close();
    this.element.replaceChildren();
  }

  async poll() {
    const { signal } = this.ending;
    const news = part(this.element, ".news");
    while (!signal.aborted) {
      try {
        if (!document.hidden) await this.look(signal);
        news.textContent = "";
      } catch (error) {
        if (signal.aborted) return;
        news.textContent = `Not known right now: ${error.message}`;
      }
      await rest(POLL_MS);
    }
  }

  /** @param {AbortSignal} signal */
  async look(signal) {
    this.take(parsed(await this.api.metrics(signal)), performance.now() / 1000);
    const [curve, worth] = await Promise.all(
      [`/cache`, `/sharing?most=${MOST}`].map((path) => this.api.read(path, signal)),
    );
    this.showCurve(curve);
    this.sharing.show(worth, curve);
  }

  /** @param {Samples} samples @param {number} now */
  take(samples, now) {
    const last = this.told.at(-1);
    if (last && now - last.now > GAP_SECONDS) {
      this.told = [];
      this.keep(PLOTS.map(({ lines }) => Object.keys(lines).map(() => null)));
    }
    this.told = this.told.filter((one) => now - one.now <= SPAN_SECONDS);
    this.told.push({ samples, now });
    const [first] = this.told;
    if (first.now === now) return;
    const span = new Span(first.samples, samples, now - first.now);
    this.keep(PLOTS.map(({ lines }) => Object.values(lines).map((line) => line(span))));
    this.replicas.show(span);
    const newest = this.data[this.data.length - 1].values;
    const moments = this.data.map(({ at }) => at);
    this.plots.forEach((plot, index) => {
      const lines = newest[index].map((_, line) => this.data.map(({ values }) => values[index][line]));
      plot.show([moments, ...lines], newest[index]);
    });
  }

  /** @param {Known[][]} values */
  keep(values) {
    this.data.push({ at: Date.now() / 1000, values });
    if (this.data.length > KEPT) this.data.shift();
  }

  /** @param {import("./sharing.js").Curve} curve */
  showCurve({ blocks, sizes }) {
    const points = sizes.toSorted((one, other) => one.blocks - other.blocks);
    const found = points.map((point) => point.found * 100);
    const here = points.findLast((point) => point.blocks <= blocks);
    this.curve.show([points.map((point) => point.blocks), found], [times(here?.found ?? null, 100)]);
  }
}
