// What a tenant used, by day: a plot, and the same as a table.

import { make, row, table } from "../dom.js";
import { Plot } from "../plot.js";
import { emptiness, load } from "./panel.js";

const DAY_SECONDS = 24 * 3600;
const COLUMNS = ["Day", "Requests", "Prompt tokens", "Found", "Output tokens", "Cost"];

/** @param {HTMLElement} place @param {import("./panel.js").Owner} owner @returns {import("./panel.js").Tab} */
export function usageOf(place, { api, path }) {
  /** @type {Plot | null} */
  let plot = null;
  const shown = async () => {
    await load(place, "usage", async () => {
      const { usage, currency } = await api.read(`${path}/usage?format=json`);
      if (usage.length === 0) return [emptiness("Nothing yet", "What is asked is counted here within seconds, by day.")];
      const inner = make("div");
      // A plot is as wide as its place, so that has to be on the page.
      requestAnimationFrame(() => { if (inner.isConnected) plot = plotOf(inner, usage); });
      const outer = make("div", "plots");
      outer.append(inner);
      return [outer, tableOf(usage, currency)];
    });
  };
  shown();
  return { close: () => plot?.close() };
}

/** @param {HTMLElement} place @param {any[]} usage */
function plotOf(place, usage) {
  const plot = new Plot(place, {
    title: "Tokens a day",
    lines: ["computed", "found", "of answers"],
    shown: (/** @type {number | null} */ value) => Number(value).toLocaleString("en"),
    leastSeconds: DAY_SECONDS,
  });
  const days = usage.map(({ day }) => Date.parse(day) / 1000);
  const lines = [
    usage.map((day) => day.prompt_tokens - day.cached_tokens),
    usage.map((day) => day.cached_tokens),
    usage.map((day) => day.output_tokens),
  ];
  plot.show([days, ...lines], lines.map((line) => line.at(-1)));
  return plot;
}

/** @param {any[]} usage @param {string | null} currency */
function tableOf(usage, currency) {
  const { region, body } = table("Usage by day", COLUMNS);
  for (const day of usage.toReversed()) {
    const part = ((100 * day.cached_tokens) / day.prompt_tokens).toFixed(0);
    const found = day.prompt_tokens ? `${number(day.cached_tokens)} (${part} %)` : "–";
    row(body, [
      day.day, number(day.requests), number(day.prompt_tokens), found, number(day.output_tokens),
      currency ? `${Number(day.cost).toFixed(2)} ${currency}` : "–",
    ]);
  }
  return region;
}

/** @param {number} value */
function number(value) { return value.toLocaleString("en"); }
