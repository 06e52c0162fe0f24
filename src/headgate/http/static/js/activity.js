/** What jobs did over time: of all, of a task or of a queue. A selected range of a chart leads to its jobs. */

import { get, optional } from "./api.js";
import { chartPanel, deployMarks, sparkline } from "./charts.js";
import { h } from "./dom.js";
import * as format from "./format.js";
import { jobsPanel } from "./job/short_list.js";
import { t } from "./language.js";
import { empty, link, panel, rangeTabs } from "./parts.js";
import { address, go } from "./router.js";
import { fillSteps, mergeSteps } from "./steps.js";

/** @typedef {{name: string, span: number, step: number}} Span */
/** A task or a queue; all jobs without both. @typedef {{task?: string, queue?: string}} Subject */

/** The time ranges of the charts, and their steps, in seconds. @type {Record<string, Span>} */
export const SPANS = {
  "15m": { name: t("15 min"), span: 900, step: 10 },
  "1h": { name: "1 h", span: 3600, step: 60 },
  "24h": { name: "24 h", span: 86_400, step: 600 },
};
/** Steps of the stored history, in seconds. */
const STEPS = [10, 60, 3600];
/** How many jobs each list has. */
const LISTED = 8;

/** @param {import("./router.js").Route} route @returns {Span} */
export function spanOf(route) {
  return SPANS[route.query.get("span") ?? ""] ?? SPANS["15m"];
}

/** @param {import("./router.js").Route} route @param {string[]} path of the page */
export function spanTabs(route, path) {
  return rangeTabs(t("Time range"), SPANS, spanOf(route), (name) =>
    address(path, { span: name === "15m" ? null : name }),
  );
}

/** Load the history for the time range of an address; null if this store keeps none. @param {import("./router.js").Route} route @param {Subject} subject @param {AbortSignal} signal */
export async function loadHistory(route, subject, signal) {
  const { span, step } = spanOf(route);
  const stored = STEPS.filter((each) => each <= step).pop();
  const history = await optional(get("history", { ...subject, span, step: stored }, signal));
  return history && { ...mergeSteps(history, step), total: history.total, deploys: history.deploys };
}

/** @param {any} history @param {Span} range @param {Subject} subject */
export function throughputAndWait(history, range, subject) {
  if (!history?.points.length) return noData(history, [t("Throughput"), t("Wait")]);
  return [throughput(history, range, subject), durations(t("Wait"), "wait", t("from due to started"), history, range, subject)];
}

/** Load the page of a task or a queue: its details, its history, its newest and its failed jobs. @param {string} details their path @param {import("./router.js").Route} route @param {Subject} subject @param {AbortSignal} signal */
export async function loadSubject(details, route, subject, signal) {
  const [found, history, recent, failed] = await Promise.all([
    get(details, {}, signal),
    loadHistory(route, subject, signal),
    get("jobs", { ...subject, count: LISTED }, signal),
    get("jobs", { ...subject, state: "failed", count: LISTED }, signal),
  ]);
  return { ...found, history, recent, failed };
}

/** What the jobs of a task or a queue did: the sums, the charts, the newest and the failed jobs. @param {any} data as loaded above @param {import("./router.js").Route} route @param {Subject} subject @param {{jobs: string, failures: string}} none what the empty lists say */
export function subjectActivity({ history, recent, failed }, route, subject, none) {
  const range = spanOf(route);
  return [
    totals(history, range, subject),
    h("div", { class: "three charts", key: "charts" }, threeCharts(history, range, subject)),
    h(
      "div",
      { class: "two", key: "jobs" },
      jobsPanel(t("Recent jobs"), recent.items, { href: address(["jobs"], { ...subject }), none: none.jobs }),
      jobsPanel(t("Recent failures"), failed.items, {
        href: address(["jobs"], { ...subject, state: "failed" }),
        more: link(address(["failures"], { ...subject, span: "24h" }), t("By root cause")),
        none: none.failures,
      }),
    ),
  ];
}

/** @param {any} history @param {Span} range @param {Subject} subject */
function threeCharts(history, range, subject) {
  if (!history?.points.length) return noData(history, [t("Throughput"), t("Wait"), t("Run")]);
  return [
    ...throughputAndWait(history, range, subject),
    durations(t("Run"), "run", t("from claim to end"), history, range, subject),
  ];
}

/** @param {any} history @param {string[]} titles */
function noData(history, titles) {
  const why = history
    ? t("The history has no data for this time range. Recent activity appears after some seconds.")
    : t("This store keeps no history.");
  return titles.map((title) => panel(title, {}, empty(t("No data"), why)));
}

/** @param {any} history @param {Span} range @param {Subject} subject */
function throughput({ points, step, deploys }, range, subject) {
  const to = format.now();
  const from = to - range.span * 1000;
  const perSecond = (/** @type {string} */ name) => fillSteps(points, step, from, to, (point) => point[name] / step, 0);
  return chartPanel(
    t("Throughput"),
    { hint: t("jobs per second") },
    {
      from,
      to,
      step: step * 1000,
      label: t("Throughput, jobs per second, {name}", { name: range.name }),
      unit: format.rate,
      onRange: showJobs(subject),
      marks: deployMarks(deploys),
      series: [
        { name: t("Succeeded"), tone: "green", kind: "area", values: perSecond("succeeded") },
        { name: t("Failed"), tone: "red", kind: "area", values: perSecond("failed") },
      ],
    },
  );
}

/** @param {string} title @param {"wait" | "run"} kind @param {string} hint @param {any} history @param {Span} range @param {Subject} subject */
function durations(title, kind, hint, { points, step, deploys }, range, subject) {
  const to = format.now();
  const from = to - range.span * 1000;
  const seconds = (/** @type {string} */ name) => fillSteps(points, step, from, to, (point) => point[name], null);
  const aggregation = step > 60 ? `, ${t("maximum per {duration}", { duration: format.duration(step) })}` : "";
  const isOfOne = subject.task !== undefined || subject.queue !== undefined;
  return chartPanel(
    title,
    { hint: `${hint}${aggregation}` },
    {
      from,
      to,
      step: step * 1000,
      label: `${title} ${hint}, ${range.name}`,
      unit: format.duration,
      onRange: showJobs(subject),
      marks: deployMarks(deploys),
      series: [
        ...(isOfOne
          ? [{ name: "p99", tone: "grey", kind: /** @type {const} */ ("line"), values: seconds(`${kind}_p99`) }]
          : []),
        { name: "p95", tone: "amber", kind: "area", values: seconds(`${kind}_p95`) },
        { name: "p50", tone: "blue", kind: "line", values: seconds(`${kind}_p50`) },
      ],
    },
  );
}

/** Show the jobs that finished in a range of time. Its address has absolute times, so it can be shared. @param {Subject} subject */
function showJobs(subject) {
  return (/** @type {number} */ from, /** @type {number} */ to) =>
    go(
      address(["jobs"], {
        ...subject,
        finished_after: new Date(from).toISOString(),
        finished_before: new Date(to).toISOString(),
      }),
    );
}

/** The sums of a time range: rate, share of failures, retries, and the percentiles of waits and runs. @param {any} history @param {Span} range @param {Subject} subject */
function totals(history, range, subject) {
  const sum = history?.total;
  const finished = sum ? sum.succeeded + sum.failed : 0;
  const since = { finished_after: new Date(format.now() - range.span * 1000).toISOString() };
  const percentiles = (/** @type {string} */ kind) =>
    sum && sum[`${kind}_p50`] !== null
      ? `p50 ${format.duration(sum[`${kind}_p50`])} · p99 ${format.duration(sum[`${kind}_p99`])}`
      : t("no data");
  const p95 = (/** @type {string} */ kind) => (sum ? format.duration(sum[`${kind}_p95`]) : "–");
  return h(
    "div",
    { class: "numbers", key: "totals" },
    number(t("Finished"), format.count(finished), t("{rate} over {span}", { rate: format.perTime(finished / range.span), span: range.name })),
    number(
      t("Failed"),
      format.share(finished ? (sum?.failed ?? 0) / finished : 0),
      t("{jobs} of {total}", { jobs: format.plural(sum?.failed ?? 0, "job"), total: format.count(finished) }),
      { class: sum?.failed ? "number state-failed" : "number", href: address(["jobs"], { ...subject, state: "failed", ...since }) },
    ),
    number(t("Retries"), format.count(sum?.retried ?? 0), t("failed attempts that are tried again")),
    number(t("Wait, p95"), p95("wait"), percentiles("wait")),
    number(t("Run, p95"), p95("run"), percentiles("run")),
  );
}

/** The throughput of a task or a queue in a list: the trend of the last minutes, and the number. @param {any} row @param {Subject} subject */
export function throughputCell({ throughput, trend }, subject) {
  if (!throughput) return h("span", { class: "faint" }, throughput === null ? "–" : "0");
  const text = format.perTime(throughput);
  return h(
    "span",
    { class: "throughput" },
    sparkline(trend, "blue", t("{name}, over {span}", { name: t("Finished"), span: t("15 min") })),
    h("a", { href: address(["jobs"], { ...subject }) }, text),
  );
}

/** The share of failed jobs of a task or a queue in a list; it leads to their causes. @param {any} row @param {Subject} subject */
export function failuresCell({ failure_share: part }, subject) {
  if (!part) return h("span", { class: "faint" }, part === null ? "–" : format.share(0));
  return h("a", { class: "bad-text", href: address(["failures"], { ...subject }) }, format.share(part));
}

/** What the lists of tasks and queues say about the time of their numbers; null if the history is not read yet. @param {{now: string, active_since: string | null}} data */
export function activityHint({ now, active_since: since }) {
  if (since === null) return null;
  const minutes = Math.ceil((Date.parse(now) - Date.parse(since)) / 60_000);
  return t("throughput, failures and p95: last {minutes} min", { minutes });
}

/** @param {string} name @param {string} value @param {string} below @param {{class: string, href: string}} [link] */
function number(name, value, below, link) {
  return h(
    link ? "a" : "div",
    { class: "number", key: name, ...link },
    h("span", { class: "number-name" }, name),
    h("span", { class: "number-value num" }, value),
    h("span", { class: "number-below" }, below),
  );
}
