// What each replica does, where there are any, and what chose one for requests.

import { times } from "./metrics.js";
import { make, row, table } from "../dom.js";

const COLUMNS = [
  "Replica", "State", "Running", "Waiting", "Queued", "KV in use", "Found", "Tokens/s", "Restarts",
  "Index behind", "News lost",
];
const CHOSEN = { residency: "by what it had", load: "by load", random: "at random" };

export class ReplicaTable {
  constructor(element, { number, percent }) {
    Object.assign(this, { element, number, percent });
    const { region, body } = table("Replicas, live", COLUMNS);
    this.body = body;
    this.routing = make("p", "hint");
    element.hidden = true;
    element.append(make("h2", "", "Replicas"), this.routing, region);
  }

  // Those that need somebody first: the ones that are down, then the longest queues.
  show(span) {
    this.element.hidden = span.now("replicas_wanted") === null;
    if (this.element.hidden) return;
    const known = span.labelled("replica_up", "replica").map((replica) => ({
      replica,
      isUp: span.now("replica_up", { replica }) === 1,
      queued: span.now("replica_queue_seconds", { replica }),
    }));
    known.sort((one, other) =>
      one.isUp - other.isUp || other.queued - one.queued || (one.replica < other.replica ? -1 : 1));
    this.body.replaceChildren();
    for (const one of known) row(this.body, this.cells(span, one));
    this.routing.textContent = this.summary(span, known.filter(({ isUp }) => isUp).length);
  }

  cells(span, { replica, isUp, queued }) {
    const { number, percent } = this;
    const now = (name) => span.now(`replica_${name}`, { replica });
    const seconds = (value) => (value === null ? "–" : `${number(value)} s`);
    const found = span.ratio(
      "replica_prefix_cache_hits_total", "replica_prefix_cache_queries_total", { replica });
    return [
      replica,
      isUp ? "up" : "down",
      number(now("num_requests_running")),
      number(now("num_requests_waiting")),
      seconds(queued),
      percent(times(now("kv_cache_usage_perc"), 100)),
      percent(times(found, 100)),
      number(span.rate("replica_generation_tokens_total", { replica })),
      number(now("engine_restarts_total")),
      seconds(now("index_lag_seconds")),
      number(now("kv_events_lost_total")),
    ];
  }

  summary(span, up) {
    const all = span.grown("requests_routed_total");
    const chosen = Object.entries(CHOSEN).map(([by, words]) =>
      `${words} ${this.percent(all ? times(span.grown("requests_routed_total", { by }), 100 / all) : null)}`);
    return `${up} of ${span.now("replicas_wanted")} are up. Requests went to a replica ${chosen.join(", ")}. `
      + `${this.number(span.now("index_blocks"))} blocks are known, `
      + `${this.number(span.now("streams_moved_total"))} streams have moved.`;
  }
}
