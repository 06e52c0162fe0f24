/** `<hg-chart>`: lines and areas over time, with the values at the pointer, and the same values as a table. */

import { classes, h, render } from "./dom.js";
import * as format from "./format.js";
import { t } from "./language.js";
import { panelId } from "./parts.js";
import { onPreferenceChange } from "./prefs.js";

/**
 * A deploy is a mark at its time. With `onRange` a range of time can be selected, by dragging, or with Enter at its first and last value.
 *
 * @typedef {{name: string, tone: string, kind: "line" | "area" | "step", values: [number, number | null][]}} Series
 * @typedef {{
 *   label: string, series: Series[], from: number, to: number, unit: (value: number) => string,
 *   bound?: {value: number, name: string} | null, step: number,
 *   marks?: {at: number, name: string}[],
 *   heading?: {title: string, hint?: string | null, aside?: import("./dom.js").Children},
 *   isWhole?: boolean, isContinuous?: boolean, onRange?: (from: number, to: number) => void,
 * }} Chart
 */

const HEIGHT = 190;
/** Pixels of a character in the name of a mark, at most on average. */
const MARK_CHAR = 7.5;
/** Least width in pixels of a value between two gaps. */
const MIN_WIDTH = 5;
const MARGIN = { left: 64, right: 12, top: 14, bottom: 24 };
/** Durations in seconds whose halves are round, too. */
const ROUND_DURATIONS = [120, 240, 600, 1200, 1800, 3600, 7200, 14_400, 28_800, 43_200, 86_400, 172_800, 604_800];
/** Minutes between two labels of the time axis. */
const LABEL_INTERVALS = [1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1440];

class ChartElement extends HTMLElement {
  /** @type {Chart | null} */
  #chart = null;
  #width = 0;
  /** @type {number | null} */
  #pointedAt = null;
  #isTable = false;
  /** Where a range of time begins that is being selected. @type {number | null} */
  #rangeFrom = null;
  #resizes = new ResizeObserver(([entry]) => {
    const width = Math.round(entry.contentRect.width);
    if (width === this.#width) return;
    this.#width = width;
    this.#draw();
  });

  connectedCallback() {
    charts.add(this);
    this.#resizes.observe(this);
    this.#width = Math.round(this.clientWidth);
    this.#draw();
  }

  disconnectedCallback() {
    charts.delete(this);
    this.#resizes.disconnect();
  }

  get chart() {
    return this.#chart;
  }

  set chart(chart) {
    this.#chart = chart;
    this.#draw();
  }

  redraw() {
    this.#draw();
  }

  #draw() {
    const chart = this.#chart;
    if (chart === null || this.#width === 0) return;
    const times = [...new Set(chart.series.flatMap((each) => each.values.map(([at]) => at)))].sort((a, b) => a - b);
    const selected = this.#pointedAt === null || !times.length ? null : nearest(times, this.#pointedAt);
    render(this, this.#legend(chart, selected), this.#isTable ? table(chart, times) : this.#plot(chart, times, selected));
  }

  /** @param {Chart} chart @param {number | null} selected */
  #legend(chart, selected) {
    // The history ends some seconds ago, so the legend shows the time of its last value.
    const at = selected ?? Math.max(...chart.series.map((each) => each.values.at(-1)?.[0] ?? 0));
    const { heading } = chart;
    return h(
      "header",
      { class: "chart-legend" },
      heading && h("h2", { id: panelId(heading.title) }, heading.title),
      heading?.hint && h("p", { class: "hint" }, heading.hint),
      h(
        "div",
        { class: "legend-items" },
        chart.series.map((each) => {
          const value = selected === null ? last(each) : valueAt(each, selected);
          return h(
            "span",
            { key: each.name, class: "legend-item" },
            h("span", { class: `swatch tone-${each.tone} swatch-${each.kind}`, "aria-hidden": "true" }),
            h("span", null, each.name),
            h("b", { class: "num" }, value === null ? "–" : chart.unit(value)),
          );
        }),
        h(
          "span",
          { class: classes("legend-at num faint", selected === null && "legend-last") },
          at > 0 ? format.clock(at) : "",
        ),
      ),
      h(
        "button",
        {
          type: "button",
          class: "quiet small",
          title: this.#isTable ? t("Show as a chart") : t("Show as a table"),
          onclick: () => this.#toggleTable(),
        },
        this.#isTable ? t("Chart") : t("Table"),
      ),
      heading?.aside,
    );
  }

  #toggleTable() {
    this.#isTable = !this.#isTable;
    this.#draw();
  }

  /** @param {Chart} chart @param {number[]} times @param {number | null} selected */
  #plot(chart, times, selected) {
    const width = this.#width;
    const top = highest(chart);
    const x = (/** @type {number} */ at) =>
      MARGIN.left + ((at - chart.from) / (chart.to - chart.from)) * (width - MARGIN.left - MARGIN.right);
    const y = (/** @type {number} */ value) => HEIGHT - MARGIN.bottom - (value / top) * (HEIGHT - MARGIN.top - MARGIN.bottom);
    const timeAt = (/** @type {PointerEvent} */ event) => {
      const share = (event.clientX - this.getBoundingClientRect().left - MARGIN.left) / (width - MARGIN.left - MARGIN.right);
      return chart.from + Math.min(1, Math.max(0, share)) * (chart.to - chart.from);
    };
    const range = this.#range(chart, selected);
    const ticks = [0, 0.5, 1].map((part) => part * top);
    return h(
      "div",
      { class: "chart-plot" },
      h(
        "svg",
        {
          viewBox: `0 0 ${width} ${HEIGHT}`,
          width,
          height: HEIGHT,
          role: "img",
          "aria-label": summary(chart),
          class: chart.onRange ? "has-ranges" : null,
          onpointerdown: (/** @type {PointerEvent} */ event) => this.#beginDrag(chart, event, timeAt(event)),
          onpointermove: (/** @type {PointerEvent} */ event) => this.#select(timeAt(event)),
          onpointerup: (/** @type {PointerEvent} */ event) => this.#endDrag(chart, timeAt(event)),
          onpointercancel: () => this.#cancelRange(),
          onpointerleave: (/** @type {PointerEvent} */ event) => event.buttons === 0 && this.#select(null),
        },
        range &&
          h("rect", {
            key: "range",
            class: "range",
            x: x(range.from),
            y: MARGIN.top,
            width: Math.max(1, x(range.to) - x(range.from)),
            height: HEIGHT - MARGIN.top - MARGIN.bottom,
          }),
        ticks.map((value) =>
          h("line", {
            key: `l${value}`,
            class: "grid-line",
            x1: MARGIN.left,
            x2: width - MARGIN.right,
            y1: y(value),
            y2: y(value),
          }),
        ),
        ticks.map((value) =>
          h("g", { key: `m${value}` }, svgText(MARGIN.left - 8, y(value) + 4, chart.unit(value), "end")),
        ),
        timeLabels(chart, width).map((at) =>
          h("g", { key: `t${at}` }, svgText(x(at), HEIGHT - 6, format.hour(at), "middle")),
        ),
        chart.series.map((each) => seriesPaths(each, chart, x, y)),
        chart.bound &&
          h(
            "g",
            { class: "bound" },
            h("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: y(chart.bound.value), y2: y(chart.bound.value) }),
            svgText(width - MARGIN.right, y(chart.bound.value) - 5, chart.bound.name, "end"),
          ),
        placedMarks(chart, x, width - MARGIN.right).map(({ at, name, anchor }) =>
          h(
            "g",
            { key: `mark${at}`, class: "deploy" },
            h("title", null, name),
            h("line", { x1: x(at), x2: x(at), y1: MARGIN.top - 10, y2: HEIGHT - MARGIN.bottom }),
            anchor && svgText(x(at) + (anchor === "start" ? 4 : -4), MARGIN.top - 2, short(name), anchor),
          ),
        ),
        selected !== null &&
          h("line", { class: "cross", x1: x(selected), x2: x(selected), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }),
        selected !== null &&
          chart.series.map((each) => {
            const value = valueAt(each, selected);
            return value === null
              ? null
              : h("circle", { key: each.name, class: `dot tone-${each.tone}`, cx: x(selected), cy: y(value), r: 3.5 });
          }),
      ),
      times.length > 0 &&
        h("input", {
          type: "range",
          class: "chart-scrub",
          min: "0",
          max: times.length - 1,
          // Not the last one while another is selected: times are added and left out while the page is live.
          value: selected === null ? times.length - 1 : times.indexOf(selected),
          "aria-label": chart.onRange
            ? t("{chart}: select a time; Enter begins and ends a range", { chart: chart.label })
            : t("{chart}: select a time", { chart: chart.label }),
          "aria-valuetext": `${valuesAt(chart, selected ?? times[times.length - 1])}${this.#rangeFrom === null ? "" : `, ${t("range begun")}`}`,
          oninput: (/** @type {any} */ event) => this.#select(times[Number(event.target.value)]),
          onkeydown: (/** @type {any} */ event) => this.#onScrubKey(chart, event, times[Number(event.target.value)]),
          onblur: () => this.#cancelRange(),
        }),
    );
  }

  /** The selected range, in whole steps, up to where the pointer is. @param {Chart} chart @param {number | null} selected */
  #range(chart, selected) {
    if (this.#rangeFrom === null || selected === null) return null;
    const [first, last] = [this.#rangeFrom, selected].sort((a, b) => a - b);
    const from = Math.floor(first / chart.step) * chart.step;
    return { from: Math.max(chart.from, from), to: Math.min(chart.to, Math.floor(last / chart.step) * chart.step + chart.step) };
  }

  /** @param {Chart} chart @param {PointerEvent} event @param {number} at */
  #beginDrag(chart, event, at) {
    if (!chart.onRange || event.button !== 0) return;
    /** @type {Element} */ (event.currentTarget).setPointerCapture(event.pointerId);
    event.preventDefault();
    this.#rangeFrom = at;
    this.#select(at);
  }

  /** @param {Chart} chart @param {number} at */
  #endDrag(chart, at) {
    // A click selects nothing: only a drag over more than a step does.
    const isDragged = this.#rangeFrom !== null && Math.abs(at - this.#rangeFrom) > chart.step / 2;
    if (isDragged) this.#endRange(chart, at);
    else this.#cancelRange();
  }

  /** @param {Chart} chart @param {KeyboardEvent} event @param {number} at */
  #onScrubKey(chart, event, at) {
    if (!chart.onRange) return;
    if (event.key === "Escape") this.#cancelRange();
    else if (event.key !== "Enter") return;
    else if (this.#rangeFrom !== null) this.#endRange(chart, at);
    else {
      this.#rangeFrom = at;
      this.#select(at);
    }
    event.preventDefault();
  }

  /** @param {Chart} chart @param {number} at */
  #endRange(chart, at) {
    const range = this.#range(chart, at);
    this.#cancelRange();
    if (range) chart.onRange?.(range.from, range.to);
  }

  #cancelRange() {
    this.#rangeFrom = null;
    this.#select(null);
  }

  /** @param {number | null} at */
  #select(at) {
    this.#pointedAt = at;
    this.#draw();
  }
}

/** @type {Set<ChartElement>} */
const charts = new Set();
customElements.define("hg-chart", ChartElement);
onPreferenceChange(() => charts.forEach((each) => each.redraw()));

/** A section with a chart over time; its title, the legend and the values at the pointer share a line. @param {string} title @param {{hint?: string | null, aside?: import("./dom.js").Children}} options @param {Chart} chart */
export function chartPanel(title, options, chart) {
  return h(
    "section",
    { class: "panel chart-panel", "aria-labelledby": panelId(title), key: title },
    h("hg-chart", { chart: { ...chart, heading: { title, ...options } }, class: "chart" }),
  );
}

/** Deploys as the marks of a chart. @param {{at: string, release: string}[]} deploys */
export function deployMarks(deploys) {
  return deploys.map(({ at, release }) => ({ at: Date.parse(at), name: release }));
}

/** A line without axes, next to a number. @param {number[]} values @param {string} tone @param {string} label */
export function sparkline(values, tone, label) {
  const top = Math.max(...values, 0);
  if (top === 0) return null;
  const points = values.map(
    (value, at) =>
      `${((at / Math.max(1, values.length - 1)) * 100).toFixed(1)},${(22 - (value / top) * 20).toFixed(1)}`,
  );
  return h(
    "svg",
    { class: "sparkline", viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img", "aria-label": label },
    values.length > 1 && [
      h("path", { class: `spark-area tone-${tone}`, d: `M0,24L${points.join("L")}L100,24z` }),
      h("polyline", { class: `spark-line tone-${tone}`, points: points.join(" ") }),
    ],
  );
}

/** @param {Series} series @param {Chart} chart @param {(at: number) => number} x @param {(value: number) => number} y */
function seriesPaths(series, chart, x, y) {
  const runs = continuousRuns(series, chart).map((run) => (run.length > 1 ? run : widened(run[0], chart, x)));
  const path = runs
    .map((run) => "M" + run.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join("L"))
    .join("");
  const ground = y(0).toFixed(1);
  const area = runs
    .map(
      (run) =>
        `M${x(run[0][0]).toFixed(1)},${ground}L${run.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join("L")}L${x(run[run.length - 1][0]).toFixed(1)},${ground}z`,
    )
    .join("");
  return h(
    "g",
    { key: series.name },
    series.kind !== "line" && h("path", { class: `area tone-${series.tone}`, d: area }),
    h("path", { class: `line tone-${series.tone}`, d: path }),
  );
}

/**
 * Draw a value between two gaps as wide as its step, so that it is visible.
 *
 * @param {[number, number]} point @param {Chart} chart @param {(at: number) => number} x @returns {[number, number][]}
 */
function widened([at, value], chart, x) {
  const half = Math.max(chart.step, (MIN_WIDTH * chart.step) / Math.max(1e-6, x(at + chart.step) - x(at))) / 2;
  return [
    [Math.max(chart.from, at - half), value],
    [Math.min(chart.to, at + half), value],
  ];
}

/** Split a series at its gaps. @param {Series} series @param {Chart} chart @returns {[number, number][][]} */
function continuousRuns(series, chart) {
  /** @type {[number, number][][]} */
  const runs = [];
  let before = -Infinity;
  for (const [at, value] of series.values) {
    if (value === null || at < chart.from || at > chart.to) continue;
    const isGap = at - before > chart.step * 1.5 && !chart.isContinuous;
    if (isGap || !runs.length) runs.push([]);
    runs[runs.length - 1].push([at, value]);
    before = at;
  }
  return runs.filter((run) => run.length);
}

/** @param {Chart} chart @param {number} width */
function timeLabels(chart, width) {
  const minutes = (chart.to - chart.from) / 60_000;
  const maxLabels = Math.max(2, Math.floor(width / 90));
  const every = (LABEL_INTERVALS.find((each) => minutes / each <= maxLabels) ?? 1440) * 60_000;
  const shift = new Date(chart.to).getTimezoneOffset() * 60_000;
  const labels = [];
  for (let at = Math.ceil((chart.from - shift) / every) * every + shift; at <= chart.to; at += every) labels.push(at);
  return labels;
}

/** The top of the value axis: a round number above all values, whose half is round, too. @param {Chart} chart */
function highest(chart) {
  const values = chart.series.flatMap((each) => each.values.map(([, value]) => value ?? 0));
  const min = chart.unit === format.duration ? 0.002 : 0.02;
  const max = Math.max(min, Math.max(...values, (chart.bound?.value ?? 0) * 1.15) || 1);
  if (chart.unit === format.duration && max > 60) return ROUND_DURATIONS.find((each) => each >= max) ?? max;
  if (chart.isWhole && max <= 10) return 2 * Math.ceil(max / 2);
  const size = 10 ** Math.floor(Math.log10(max));
  return ([1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10].find((each) => each * size >= max) ?? 10) * size || 1;
}

/** @param {Chart} chart @param {number[]} times */
function table(chart, times) {
  return h(
    "div",
    { class: "chart-table", tabindex: "0", role: "region", "aria-label": t("{chart}, as a table", { chart: chart.label }) },
    h(
      "table",
      null,
      h(
        "thead",
        null,
        h(
          "tr",
          null,
          h("th", { scope: "col" }, t("Time")),
          chart.series.map((each) => h("th", { scope: "col", class: "right" }, each.name)),
        ),
      ),
      h(
        "tbody",
        null,
        [...times]
          .reverse()
          .slice(0, 240)
          .map((at) =>
            h(
              "tr",
              { key: at },
              h("td", { class: "num" }, format.clock(at)),
              chart.series.map((each) => {
                const value = valueAt(each, at);
                return h("td", { class: "num right" }, value === null ? "–" : chart.unit(value));
              }),
            ),
          ),
      ),
    ),
  );
}

/** @param {Chart} chart */
function summary(chart) {
  const parts = chart.series.map((each) => {
    const values = each.values.map(([, value]) => value).filter((value) => value !== null);
    if (!values.length) return t("{name}: no values", { name: each.name });
    return t("{name}: last {last}, highest {highest}", { name: each.name, last: chart.unit(values[values.length - 1]), highest: chart.unit(Math.max(...values)) });
  });
  const marks = marksIn(chart).map(({ at, name }) => `${name} (${format.instant(at)})`);
  const deploys = marks.length ? `. ${t("Deploys: {deploys}", { deploys: marks.join(", ") })}` : "";
  return `${chart.label}. ${parts.join("; ")}${deploys}`;
}

/** @param {Chart} chart */
function marksIn(chart) {
  return (chart.marks ?? []).filter(({ at }) => at >= chart.from && at <= chart.to);
}

/**
 * The marks, each with the side of its line on which its name is; a name that would cover the one before is left out.
 *
 * @param {Chart} chart @param {(at: number) => number} x @param {number} right the end of the plot
 * @returns {{at: number, name: string, anchor: "start" | "end" | null}[]}
 */
function placedMarks(chart, x, right) {
  let taken = 0;
  return marksIn(chart).map(({ at, name }) => {
    const size = 8 + short(name).length * MARK_CHAR;
    const isLeft = x(at) + size > right;
    if ((isLeft ? x(at) - size : x(at)) < taken) return { at, name, anchor: null };
    taken = isLeft ? x(at) : x(at) + size;
    return { at, name, anchor: isLeft ? "end" : "start" };
  });
}

/** @param {string} name */
function short(name) {
  return name.length > 12 ? `${name.slice(0, 11)}…` : name;
}

/** @param {Chart} chart @param {number} at */
function valuesAt(chart, at) {
  const values = chart.series.map((each) => {
    const value = valueAt(each, at);
    return `${each.name} ${value === null ? t("no value") : chart.unit(value)}`;
  });
  return `${format.clock(at)}: ${values.join(", ")}`;
}

/** @param {Series} series @param {number} at */
function valueAt(series, at) {
  return series.values.find(([each]) => each === at)?.[1] ?? null;
}

/** @param {Series} series */
function last(series) {
  return series.values.length ? series.values[series.values.length - 1][1] : null;
}

/** @param {number[]} times @param {number} at */
function nearest(times, at) {
  return times.reduce((best, each) => (Math.abs(each - at) < Math.abs(best - at) ? each : best), times[0]);
}

/** @param {number} x @param {number} y @param {string} text @param {string} anchor */
function svgText(x, y, text, anchor) {
  return h("text", { x, y, "text-anchor": anchor }, text);
}
