// What a tenant used, by day: a plot, and the same as a table.

import { make, row, table } from "../dom.js";
import { Plot } from "../plot.js";

const DAY_SECONDS = 24 * 3600;
const COLUMNS = ["Day", "Requests", "Prompt tokens", "Cached", "Output tokens", "Cost"];

export async function usageOf(api, id, element) {
  const { usage, currency } = await api.read(`/tenants/${id}/usage?format=json`);
  if (usage.length === 0) {
    element.append(make("p", "hint", "Nothing yet."));
    return null;
  }
  const place = make("div", "plots");
  const inner = make("div");
  place.append(inner);
  element.append(place);
  const plot = new Plot(inner, {
    title: "Tokens a day",
    lines: ["computed", "cached", "of answers"],
    shown: (value) => Number(value).toLocaleString("en"),
    leastSeconds: DAY_SECONDS,
  });
  const days = usage.map(({ day }) => Date.parse(day) / 1000);
  const lines = [
    usage.map((day) => day.prompt_tokens - day.cached_tokens),
    usage.map((day) => day.cached_tokens),
    usage.map((day) => day.output_tokens),
  ];
  plot.show([days, ...lines], lines.map((line) => line.at(-1)));
  const { region, body } = table("Usage by day", COLUMNS);
  for (const day of usage.toReversed()) {
    const cost = currency ? `${Number(day.cost).toFixed(4)} ${currency}` : "–";
    row(body, [day.day, day.requests, day.prompt_tokens, day.cached_tokens, day.output_tokens, cost]);
  }
  element.append(region);
  return plot;
}
