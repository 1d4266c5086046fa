// What `/metrics` tells in Prometheus' text format, and what lies between two such tellings.

const LINE = /^(\w+)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

// Samples by name: each with its labels and its value.
export function parsed(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const [, name, labels = "", value] = LINE.exec(line) ?? [];
    if (name === undefined) continue;
    if (!samples.has(name)) samples.set(name, []);
    const named = Object.fromEntries([...labels.matchAll(LABEL)].map(([, key, of]) => [key, of]));
    samples.get(name).push({ labels: named, value: Number(value) });
  }
  return samples;
}

// The sum of a metric's samples with these labels; null where there are none.
export function total(samples, name, labels = {}) {
  const wanted = Object.entries(labels);
  const found = (samples.get(`partywall_${name}`) ?? []).filter((sample) =>
    wanted.every(([key, value]) => sample.labels[key] === value));
  return found.length ? found.reduce((sum, { value }) => sum + value, 0) : null;
}

// Of what may not be known.
export function times(value, factor) { return value === null ? null : value * factor; }
export function minus(one, other) { return one === null || other === null ? null : one - other; }

// Two tellings, the seconds between them, and what was counted meanwhile.
export class Span {
  constructor(before, after, seconds) {
    this.before = before;
    this.after = after;
    this.seconds = seconds;
  }

  now(name, labels) { return total(this.after, name, labels); }

  // How much a counter has grown; null where it has begun anew, or is not told of.
  grown(name, labels) {
    const after = total(this.after, name, labels);
    const grown = after - (total(this.before, name, labels) ?? 0);
    return after === null || grown < 0 ? null : grown;
  }

  rate(name, labels) {
    const grown = this.grown(name, labels);
    return grown === null ? null : grown / this.seconds;
  }

  ratio(name, of, labels) {
    const [part, all] = [this.grown(name, labels), this.grown(of, labels)];
    return part === null || !all ? null : part / all;
  }

  // The values of a label that there are now.
  labelled(name, label) {
    const found = this.after.get(`partywall_${name}`) ?? [];
    return [...new Set(found.map(({ labels }) => labels[label]))];
  }

  // A quantile of what a histogram has observed, as Prometheus reckons it; null for nothing.
  quantile(name, quantile) {
    const labels = (samples) => samples.get(`partywall_${name}_bucket`) ?? [];
    const bounds = [...new Set(labels(this.after).map((sample) => sample.labels.le))];
    const counts = bounds
      .map((le) => [le === "+Inf" ? Infinity : Number(le), this.grown(`${name}_bucket`, { le })])
      .sort(([one], [other]) => one - other);
    const all = counts.at(-1)?.[1];
    if (!all || counts.some(([, count]) => count === null)) return null;
    const rank = quantile * all;
    const at = counts.findIndex(([, count]) => count >= rank);
    const [below, countBelow] = at > 0 ? counts[at - 1] : [0, 0];
    const [bound, count] = counts[at];
    if (bound === Infinity) return below;
    return below + (bound - below) * ((rank - countBelow) / (count - countBelow));
  }
}
