// Lines over time, or over anything, with a legend that tells the newest values as text.

import { entry, make, put } from "./dom.js";
import uPlot from "./vendor/uPlot.esm.js";

// Its style comes with it, for views that have no plot need neither.
document.head.append(Object.assign(document.createElement("link"), {
  rel: "stylesheet",
  href: new URL("./vendor/uPlot.min.css", import.meta.url),
}));

const HEIGHT = 180; // CSS pixels
const FEW = 4; // points that are shown as such
const COLOURS = ["--accent", "--shared", "--pinned", "--in-use"];

export class Plot {
  // `lines` are labels; `shown` says a value, which may be null, in words. A single value is shown
  // at the end of so many seconds.
  constructor(element, { title, lines, shown, isOverTime = true, axis = "", leastSeconds = 60 }) {
    Object.assign(this, { element, lines, shown, isOverTime, axis, leastSeconds });
    const legend = make("ul", "legend");
    legend.append(...lines.map((label, index) => entry(label, `var(${COLOURS[index]})`)));
    this.values = [...legend.querySelectorAll("b")];
    this.place = make("div");
    this.place.ariaHidden = "true"; // the legend says it
    element.append(make("h2", "", title), legend, this.place);
    this.data = [[], ...lines.map(() => [])];
    this.draw();
  }

  // Draw anew, as the colours or the width have changed.
  draw() {
    this.plot?.destroy();
    const style = getComputedStyle(this.element);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = {
      stroke: colour("--soft"),
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { stroke: colour("--line"), width: 1 },
      values: (_, values) => values.map((value) => value.toLocaleString("en", { notation: "compact" })),
    };
    const options = {
      width: this.element.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      cursor: { show: false },
      scales: {
        x: { time: this.isOverTime },
        y: { range: (_, __, most) => [0, most > 0 ? most * 1.05 : 1] },
      },
      axes: [this.isOverTime ? { ...axis, values: undefined } : { ...axis, label: this.axis, labelSize: 20 }, axis],
      series: [{}, ...this.lines.map((label, index) => ({
        label, stroke: colour(COLOURS[index]), width: 2,
        points: { show: ({ data }) => !this.isOverTime || data[0].length < FEW },
      }))],
    };
    this.plot = new uPlot(options, this.data, this.place);
  }

  show([places, ...lines], newest) {
    const before = places.length === 1 ? [places[0] - this.leastSeconds] : [];
    this.data = [[...before, ...places], ...lines.map((line) => [...before.map(() => null), ...line])];
    this.plot.setData(this.data);
    this.values.forEach((value, index) => put(value, this.shown(newest[index])));
  }

  close() { this.plot.destroy(); }
}
