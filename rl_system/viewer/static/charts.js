// Charts over one shared axis: a stretch that is selected in one is selected in all.

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { h, number } from "./dom.js";

export const COLOURS = ["#1d4ed8", "#b45309", "#047857", "#b91c1c", "#6d28d9", "#0e7490"];
const MARKS = { evaluation: "#047857", checkpoint: "#64748b", other: "#b91c1c" };

/** onStretch: told [from, to] or null. */
export class Charts {
  /** whole: the axis without a stretch, [from, to]. */
  constructor(whole, onStretch) {
    this.whole = whole;
    this.onStretch = onStretch;
    this.plots = [];
    this.stretch = null;
    this.sync = uPlot.sync(`charts-${Math.random()}`);
    this.observer = new ResizeObserver((entries) => {
      for (const { target } of entries) {
        const width = Math.max(200, target.clientWidth);
        for (const plot of this.plots) if (target.contains(plot.root) && plot.width !== width) plot.setSize({ width, height: 190 });
      }
    });
  }

  /** columns: [x, ...values]; labels: one a value; marks: [{x, kind}]. Returns the figure. */
  add(title, reading, columns, labels, marks, axis, points) {
    const place = h("div", { class: "plot" });
    const figure = h("figure", { role: "group", "aria-label": `${title}: ${describe(columns, labels)}` },
      h("figcaption", {}, title, reading ? h("small", {}, reading) : null), place);
    const plot = new uPlot({
      width: 460, height: 190,
      cursor: { sync: { key: this.sync.key, scales: ["x", null] }, drag: { x: true, y: false, setScale: false } },
      scales: { x: { time: false, range: () => this.stretch ?? this.whole } },
      axes: [
        { label: axis, labelSize: 18, size: 34, stroke: "#475569", grid: { stroke: "#e2e8f0", width: 1 }, values: (_, ticks) => ticks.map((tick) => number(tick)) },
        { size: 54, stroke: "#475569", grid: { stroke: "#e2e8f0", width: 1 }, values: (_, ticks) => ticks.map((tick) => number(tick)) },
      ],
      series: [
        { label: axis, value: (_, value) => number(value) },
        ...labels.map((label, at) => ({
          label, stroke: COLOURS[at % COLOURS.length], width: 1.75, spanGaps: true, points: { show: points || columns[0].length < 60, size: 5 },
          value: (_, value) => number(value),
        })),
      ],
      hooks: {
        draw: [(u) => drawMarks(u, marks)],
        setSelect: [(u) => {
          if (u.select.width > 3) this.select([u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")]);
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        }],
      },
    }, columns, place);
    plot.over.addEventListener("dblclick", () => this.select(null));
    this.plots.push(plot);
    this.observer.observe(place);
    return figure;
  }

  select(stretch, tell = true) {
    this.stretch = stretch;
    const [min, max] = stretch ?? this.whole;
    for (const plot of this.plots) plot.setScale("x", { min, max });
    if (tell) this.onStretch(stretch);
  }

  destroy() {
    this.observer.disconnect();
    for (const plot of this.plots) plot.destroy();
    this.plots = [];
  }
}

function drawMarks(u, marks) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.globalAlpha = 0.55;
  ctx.setLineDash([3, 4]);
  for (const { x, kind } of marks) {
    const at = Math.round(u.valToPos(x, "x", true));
    if (at < bbox.left || at > bbox.left + bbox.width) continue;
    ctx.strokeStyle = MARKS[kind];
    ctx.beginPath();
    ctx.moveTo(at, bbox.top);
    ctx.lineTo(at, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

/** What a chart shows, for those who do not see it. */
function describe(columns, labels) {
  return labels.map((label, at) => {
    const values = columns[at + 1].filter((value) => value !== null && value !== undefined);
    return values.length ? `${label} from ${number(values[0])} to ${number(values[values.length - 1])}` : `${label} without values`;
  }).join("; ");
}
