// Lines over time, or over anything, with a legend that tells the newest values as text.

import uPlot from "../vendor/uPlot.esm.js";

const HEIGHT = 180; // CSS pixels
const LEAST_SECONDS = 60; // shown of a time that has just begun
export const COLOURS = ["--accent", "--shared", "--pinned", "--in-use"];

export class Plot {
  // `lines` are labels; `shown` says a value, which may be null, in words.
  constructor(element, { title, lines, shown, isOverTime = true, axis = "" }) {
    Object.assign(this, { element, lines, shown, isOverTime, axis });
    const heading = document.createElement("h2");
    heading.textContent = title;
    this.legend = document.createElement("ul");
    this.legend.className = "legend";
    this.values = lines.map((label, index) => {
      const swatch = document.createElement("i");
      swatch.className = "swatch";
      swatch.style.background = `var(${COLOURS[index]})`;
      const item = document.createElement("li");
      const value = document.createElement("b");
      item.append(swatch, `${label} `, value);
      this.legend.append(item);
      return value;
    });
    this.place = document.createElement("div");
    this.place.ariaHidden = "true"; // the legend says it
    element.append(heading, this.legend, this.place);
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
        x: { time: this.isOverTime, range: (_, least, most) => (
          this.isOverTime ? [Math.min(least, most - LEAST_SECONDS), most] : [least, most]) },
        y: { range: (_, __, most) => [0, most > 0 ? most * 1.05 : 1] },
      },
      axes: [this.isOverTime ? { ...axis, values: undefined } : { ...axis, label: this.axis, labelSize: 20 }, axis],
      series: [{}, ...this.lines.map((label, index) => ({
        label, stroke: colour(COLOURS[index]), width: 2, points: { show: !this.isOverTime },
      }))],
    };
    this.plot = new uPlot(options, this.data, this.place);
  }

  show(data, newest) {
    this.data = data;
    this.plot.setData(data);
    this.values.forEach((value, index) => {
      const text = this.shown(newest[index]);
      if (value.textContent !== text) value.textContent = text;
    });
  }

  close() { this.plot.destroy(); }
}
