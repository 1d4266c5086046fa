// Lines over time, or over anything, with a legend that tells the newest values as text.

import { dressed, entry, make, put } from "./dom.js";
import uPlot from "./vendor/uPlot.esm.js";

dressed(new URL("./vendor/uPlot.min.css", import.meta.url)); // views that have no plot need neither

const HEIGHT = 180; // CSS pixels
const FEW = 4; // points that are shown as such
const COLOURS = ["--accent", "--shared", "--pinned", "--in-use"];

/**
 * @typedef {number | null | undefined} Value
 * @typedef {object} Options `lines` are labels; `shown` says a value, which may be none, in words. A
 *   single value is shown at the end of so many seconds.
 * @property {string} title
 * @property {string[]} lines
 * @property {(value: any) => string} shown
 * @property {boolean} [isOverTime]
 * @property {string} [axis]
 * @property {number} [leastSeconds]
 */

export class Plot {
  /** @param {HTMLElement} element @param {Options} options */
  constructor(element, { title, lines, shown, isOverTime = true, axis = "", leastSeconds = 60 }) {
    this.element = element;
    this.lines = lines;
    this.shown = shown;
    this.isOverTime = isOverTime;
    this.axis = axis;
    this.leastSeconds = leastSeconds;
    const legend = make("ul", "legend");
    legend.append(...lines.map((label, index) => entry(label, `var(${COLOURS[index]})`)));
    this.values = [...legend.querySelectorAll("b")];
    this.place = make("div");
    this.place.ariaHidden = "true"; // the legend says it
    element.append(make("h2", "", title), legend, this.place);
    /** @type {Value[][]} */
    this.data = [[], ...lines.map(() => [])];
    this.plot = this.drawn();
  }

  // Draw anew, as the colours or the width have changed.
  draw() {
    this.plot.destroy();
    this.plot = this.drawn();
  }

  drawn() {
    const style = getComputedStyle(this.element);
    /** @param {string} name */
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = {
      stroke: colour("--soft"),
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { stroke: colour("--line"), width: 1 },
      /** @type {(_: unknown, values: number[]) => string[]} */
      values: (_, values) => values.map((value) => value.toLocaleString("en", { notation: "compact" })),
    };
    const options = {
      width: this.element.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      cursor: { show: false },
      scales: {
        x: { time: this.isOverTime },
        /** @type {{ range(_: unknown, __: unknown, most: number): number[] }} */
        y: { range: (_, __, most) => [0, most > 0 ? most * 1.05 : 1] },
      },
      axes: [this.isOverTime ? { ...axis, values: undefined } : { ...axis, label: this.axis, labelSize: 20 }, axis],
      series: [{}, ...this.lines.map((label, index) => ({
        label, stroke: colour(COLOURS[index]), width: 2,
        /** @type {{ show(plot: { data: Value[][] }): boolean }} */
        points: { show: ({ data }) => !this.isOverTime || data[0].length < FEW },
      }))],
    };
    return new uPlot(options, this.data, this.place);
  }

  /** @param {Value[][]} data places, and each line's values there @param {Value[]} newest of the lines */
  show([places, ...lines], newest) {
    const before = places.length === 1 ? [Number(places[0]) - this.leastSeconds] : [];
    this.data = [[...before, ...places], ...lines.map((line) => [...before.map(() => null), ...line])];
    this.plot.setData(this.data);
    this.values.forEach((value, index) => put(value, this.shown(newest[index])));
  }

  close() { this.plot.destroy(); }
}
