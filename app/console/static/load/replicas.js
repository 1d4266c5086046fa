// What each replica does, where there are any, and what chose one for requests.

import { times } from "./metrics.js";
import { NUMBER, PERCENT } from "./said.js";
import { make, row, table } from "../dom.js";

const COLUMNS = [
  "Replica", "State", "Running", "Waiting", "Queued", "KV in use", "Found", "Tokens/s", "Restarts",
  "Index behind", "News lost",
];
const CHOSEN = { residency: "by what it had", load: "by load", random: "at random" };

/**
 * @typedef {import("./metrics.js").Span} Span
 * @typedef {{replica: string, isUp: boolean, queued: number | null}} Replica
 */

const seconds = (/** @type {number | null} */ value) => (value === null ? "–" : `${NUMBER(value)} s`);

export class ReplicaTable {
  /** @param {HTMLElement} element */
  constructor(element) {
    this.element = element;
    const { region, body } = table("Replicas, live", COLUMNS);
    this.body = body;
    this.routing = make("p", "hint");
    element.hidden = true;
    element.append(make("h2", "", "Replicas"), this.routing, region);
  }

  // Those that need somebody first: the ones that are down, then the longest queues.
  /** @param {Span} span */
  show(span) {
    this.element.hidden = span.now("replicas_wanted") === null;
    if (this.element.hidden) return;
    const known = span.labelled("replica_up", "replica").map((replica) => ({
      replica,
      isUp: span.now("replica_up", { replica }) === 1,
      queued: span.now("replica_queue_seconds", { replica }),
    }));
    known.sort((one, other) =>
      Number(one.isUp) - Number(other.isUp) || (other.queued ?? 0) - (one.queued ?? 0) || (one.replica < other.replica ? -1 : 1));
    this.body.replaceChildren();
    for (const one of known) row(this.body, this.cells(span, one));
    this.routing.textContent = this.summary(span, known.filter(({ isUp }) => isUp).length);
  }

  /** @param {Span} span @param {Replica} known */
  cells(span, { replica, isUp, queued }) {
    const now = (/** @type {string} */ name) => span.now(`replica_${name}`, { replica });
    const found = span.ratio(
      "replica_prefix_cache_hits_total", "replica_prefix_cache_queries_total", { replica });
    return [
      replica,
      isUp ? "up" : "down",
      NUMBER(now("num_requests_running")),
      NUMBER(now("num_requests_waiting")),
      seconds(queued),
      PERCENT(times(now("kv_cache_usage_perc"), 100)),
      PERCENT(times(found, 100)),
      NUMBER(span.rate("replica_generation_tokens_total", { replica })),
      NUMBER(now("engine_restarts_total")),
      seconds(now("index_lag_seconds")),
      NUMBER(now("kv_events_lost_total")),
    ];
  }

  /** @param {Span} span @param {number} up */
  summary(span, up) {
    const all = span.grown("requests_routed_total");
    const chosen = Object.entries(CHOSEN).map(([by, words]) =>
      `${words} ${PERCENT(all ? times(span.grown("requests_routed_total", { by }), 100 / all) : null)}`);
    return `${up} of ${span.now("replicas_wanted")} are up. Requests went to a replica ${chosen.join(", ")}. `
      + `${NUMBER(span.now("index_blocks"))} blocks are known, `
      + `${NUMBER(span.now("streams_moved_total"))} streams have moved.`;
  }
}
