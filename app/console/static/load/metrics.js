// What `/metrics` tells in Prometheus' text format, and what lies between two such tellings.

const LINE = /^(\w+)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/**
 * @typedef {Record<string, string>} Labels
 * @typedef {Map<string, {labels: Labels, value: number}[]>} Samples by name
 */

// Samples by name: each with its labels and its value.
/** @param {string} text @returns {Samples} */
export function parsed(text) {
  /** @type {Samples} */
  const samples = new Map();
  for (const line of text.split("\n")) {
    const [, name, labels = "", value] = LINE.exec(line) ?? [];
    if (name === undefined) continue;
    const named = Object.fromEntries([...labels.matchAll(LABEL)].map(([, key, of]) => [key, of]));
    const sample = { labels: named, value: Number(value) };
    const known = samples.get(name);
    if (known) known.push(sample);
    else samples.set(name, [sample]);
  }
  return samples;
}

// The sum of a metric's samples with these labels; null where there are none.
/** @param {Samples} samples @param {string} name @param {Labels} [labels] */
export function total(samples, name, labels = {}) {
  const wanted = Object.entries(labels);
  const found = (samples.get(`partywall_${name}`) ?? []).filter((sample) =>
    wanted.every(([key, value]) => sample.labels[key] === value));
  return found.length ? found.reduce((sum, { value }) => sum + value, 0) : null;
}

// Of what may not be known.
/** @param {number | null} value @param {number} factor */
export function times(value, factor) { return value === null ? null : value * factor; }
/** @param {number | null} one @param {number | null} other */
export function minus(one, other) { return one === null || other === null ? null : one - other; }

// Two tellings, the seconds between them, and what was counted meanwhile.
export class Span {
  /** @param {Samples} before @param {Samples} after @param {number} seconds */
  constructor(before, after, seconds) {
    this.before = before;
    this.after = after;
    this.seconds = seconds;
  }

  /** @param {string} name @param {Labels} [labels] */
  now(name, labels) { return total(this.after, name, labels); }

  // How much a counter has grown; null where it has begun anew, or is not told of.
  /** @param {string} name @param {Labels} [labels] */
  grown(name, labels) {
    const after = total(this.after, name, labels);
    const grown = (after ?? 0) - (total(this.before, name, labels) ?? 0);
    return after === null || grown < 0 ? null : grown;
  }

  /** @param {string} name @param {Labels} [labels] */
  rate(name, labels) {
    const grown = this.grown(name, labels);
    return grown === null ? null : grown / this.seconds;
  }

  /** @param {string} name @param {string} of @param {Labels} [labels] */
  ratio(name, of, labels) {
    const [part, all] = [this.grown(name, labels), this.grown(of, labels)];
    return part === null || !all ? null : part / all;
  }

  // The values of a label that there are now.
  /** @param {string} name @param {string} label */
  labelled(name, label) {
    const found = this.after.get(`partywall_${name}`) ?? [];
    return [...new Set(found.map(({ labels }) => labels[label]))];
  }

  // A quantile of what a histogram has observed, as Prometheus reckons it; null for nothing.
  /** @param {string} name @param {number} quantile */
  quantile(name, quantile) {
    const labels = (/** @type {Samples} */ samples) => samples.get(`partywall_${name}_bucket`) ?? [];
    const bounds = [...new Set(labels(this.after).map((sample) => sample.labels.le))];
    const counts = bounds
      .map((le) => ({ bound: le === "+Inf" ? Infinity : Number(le), grown: this.grown(`${name}_bucket`, { le }) }))
      .toSorted((one, other) => one.bound - other.bound)
      .map(({ bound, grown }) => ({ bound, count: grown ?? NaN }));
    const all = counts.at(-1)?.count;
    if (!all || counts.some(({ count }) => Number.isNaN(count))) return null;
    const rank = quantile * all;
    const at = counts.findIndex(({ count }) => count >= rank);
    const { bound: below, count: countBelow } = at > 0 ? counts[at - 1] : { bound: 0, count: 0 };
    const { bound, count } = counts[at];
    if (bound === Infinity) return below;
    return below + (bound - below) * ((rank - countBelow) / (count - countBelow));
  }
}
