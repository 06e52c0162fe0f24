/** The overview: problems, the keys of limits, job counts, throughput, waits, queues and nodes. */

import { loadHistory, spanOf, spanTabs, throughputAndWait } from "../activity.js";
import { get } from "../api.js";
import { sparkline } from "../charts.js";
import { command } from "../commands.js";
import { classes, h } from "../dom.js";
import * as format from "../format.js";
import { icon } from "../icons.js";
import { ruleLabel } from "../limits/buckets.js";
import { heatLegend, heatMap } from "../limits/heat_map.js";
import { t } from "../language.js";
import * as live from "../live.js";
import {
  badge,
  breakable,
  empty,
  heading,
  link,
  notice,
  panel,
  when,
} from "../parts.js";
import { address } from "../router.js";
import { fillSteps } from "../steps.js";
import { table } from "../table.js";
import { verdict } from "../verdict.js";

/** @typedef {import("../page.js").Context} Context */

/** @type {import("../page.js").PageDefinition} */
export const overview = {
  title: () => t("Overview"),
  every: 10_000,
  usesStream: true,
  load: async ({ route }, signal) => {
    const history = loadHistory(route, {}, signal);
    // It is awaited below, unless the store does not answer: then it is not shown, and neither is its error.
    history.catch(() => {});
    const status = await get("overview", {}, signal);
    return { ...status, history: status.silent_since ? null : await history };
  },
  view: (context) => {
    const { data, route } = context;
    // The stream may be newer than the last load.
    const update = live.current().overview;
    const latest = update && Date.parse(update.now) > Date.parse(data.now) ? { ...data, ...update } : data;
    return [
      heading(t("Overview"), {
        actions: spanTabs(route, ["overview"]),
      }),
      verdict(latest.verdict),
      latest.silent_since && h("p", { class: "hint", key: "known" }, t("Last known state, {time}:", { time: format.relative(latest.counted_at ?? latest.silent_since) })),
      h(
        "div",
        { class: classes("known", latest.silent_since && "is-stale"), key: "state" },
        warnings(latest),
        limitsPanel(latest),
        tiles(latest, data.history, spanOf(route)),
        !latest.silent_since && h("div", { class: "two charts", key: "charts" }, throughputAndWait(data.history, spanOf(route), {})),
        h(
          "div",
          { class: "two wide-left", key: "tables" },
          queuesPanel(latest),
          nodesPanel(latest),
        ),
      ),
    ];
  },
};

/** @param {any} data */
function warnings(data) {
  const paused = data.queues.filter((/** @type {any} */ queue) => queue.paused_at);
  return h(
    "div",
    { class: "notices", key: "warnings" },
    data.alerts.map((/** @type {any} */ each) =>
      notice(
        each.state === "firing" ? "bad" : "warn",
        h("b", null, each.state === "firing" ? t("Alert {name}:", { name: each.alert }) : t("Alert {name} has ended:", { name: each.alert })),
        " ",
        each.text,
        " (",
        when(each.started_at),
        ").",
        each.error !== null && [" ", h("b", null, t("Not delivered:")), " ", each.error],
      ),
    ),
    paused.length > 0 &&
      notice(
        "warn",
        h("b", null, `${format.plural(paused.length, "queue is paused", "queues are paused")}: `),
        firstOf(paused, MOST_NAMED, (queue) => link("queues", queue.queue), (count) => format.plural(count, "more queue"), "queues"),
      ),
    notices(data.unknown_tasks, (each) =>
      notice(
        "warn",
        h("b", null, t("Unknown task {task}:", { task: each.task })),
        " ",
        t("{jobs} in queue {queue}. This app does not declare the task; only nodes of an app that declares it run its jobs.", {
          jobs: format.plural(each.jobs, "waiting job"),
          queue: each.queue,
        }),
        " ",
        link(address(["jobs"], { task: each.task, state: "waiting" }), t("Show jobs")),
      ),
    ),
    notices(data.overdue_schedules, (each) =>
      notice(
        "warn",
        h("b", null, t("Schedule")),
        " ",
        link(address(["schedules", each.name]), each.name),
        h("b", null, `: ${each.problem ?? t("overdue")}.`),
      ),
    ),
    data.blockers.map((/** @type {any} */ each) =>
      notice(
        "warn",
        h("b", null, t("A database session has delayed the store for {duration}:", { duration: format.duration(each.age) })),
        ` ${each.what} (${each.kind}${each.pid ? `, pid ${each.pid}` : ""})`,
        each.statement && [". ", t("Last statement:"), " ", h("code", null, each.statement)],
      ),
    ),
  );
}

/** A notice for each of the first of a list, and one with the number of the others. @param {any[]} list @param {(each: any) => import("../dom.js").Children} shown */
function notices(list, shown) {
  return [list.slice(0, MOST_NAMED).map(shown), list.length > MOST_NAMED && notice("warn", t("and {count} more", { count: format.count(list.length - MOST_NAMED) }))];
}

/** @param {any} data @param {any} history @param {{span: number, name: string}} range */
function tiles(data, history, range) {
  const { totals, nodes } = data;
  const failed = data.failed_last_hour;
  const to = format.now();
  const spark = (/** @type {string} */ name, /** @type {string} */ tone) =>
    history?.points.length > 0 &&
    sparkline(
      fillSteps(history.points, history.step, to - range.span * 1000, to, (point) => point[name], 0).map(
        ([, value]) => value ?? 0,
      ),
      tone,
      t("{name}, over {span}", { name, span: range.name }),
    );
  const jobs = (/** @type {Record<string, string>} */ query) => address(["jobs"], query);
  return h(
    "div",
    { class: classes("numbers", countedAgo(data) && "is-old"), key: "numbers" },
    tile(
      "running",
      t("Running"),
      totals.running,
      jobs({ state: "running" }),
      countedAgo(data) ?? (nodes.slots ? t("of {slots}", { slots: format.plural(nodes.slots, "slot") }) : t("no slots")),
      nodes.slots ? gaugeBar(totals.running, nodes.slots) : null,
    ),
    tile(
      "ready",
      t("Ready"),
      totals.ready,
      jobs({ view: "ready" }),
      countedAgo(data) ?? t("waiting for a free slot"),
      null,
    ),
    tile("throttled", t("Throttled"), totals.throttled, jobs({ view: "throttled" }), countedAgo(data) ?? t("waiting for a limit"), null),
    tile(
      "scheduled",
      t("Scheduled"),
      totals.scheduled,
      jobs({ view: "scheduled" }),
      countedAgo(data) ?? (totals.blocked ? t("and {blocked} blocked", { blocked: format.count(totals.blocked) }) : t("waiting for their time")),
      null,
    ),
    tile(
      failed === null ? "waiting" : failed ? "failed" : "succeeded",
      t("Failed in the last hour"),
      failed,
      jobs({ state: "failed", finished_after: "1h" }),
      finalsAgo(data, t("{count} in the store", { count: format.count(totals.failed) })),
      spark("failed", "red"),
      data.is_failed_cut,
    ),
  );
}

/** @param {string} state @param {string} name @param {number | null} value @param {string} href @param {string} below @param {any} picture @param {boolean} [isCut] whether there are more */
function tile(state, name, value, href, below, picture, isCut = false) {
  const text = value === null || value < 1_000_000 ? format.bounded(value, !isCut) : format.compact(value);
  return h(
    "a",
    { class: classes("number", `state-${state}`), href, key: name },
    h("span", { class: "number-name" }, icon(state), name),
    h("span", { class: "number-value num" }, text),
    h("span", { class: "number-below" }, below),
    picture,
  );
}

/** @param {number} part @param {number} whole */
function gaugeBar(part, whole) {
  return h(
    "span",
    { class: "thin-bar", "aria-hidden": "true" },
    h("span", { style: { width: `${Math.min(100, (100 * part) / whole)}%` } }),
  );
}

/** The placeholder for a list of queues until their jobs are counted. */
export function counting() {
  return empty(t("Counting jobs …"), t("This store holds many jobs. The counts appear here when they are ready."));
}

/** Milliseconds after which a number is shown with its age. */
const OLD_AFTER = 5_000;

/** "counted 12 s ago"; null if the count is current or not ready. @param {{now: string, counted_at: string | null}} data */
export function countedAgo({ now, counted_at: at }) {
  return at === null || Date.parse(now) - Date.parse(at) <= OLD_AFTER ? null : t("counted {time}", { time: format.relative(at) });
}

/** A text, with "counted 3 min ago" if the final jobs were counted a while ago. @param {{now: string, finals_at: string | null}} data @param {string} text */
function finalsAgo({ now, finals_at: at }, text) {
  if (at === null || Date.parse(now) - Date.parse(at) < 10_000) return text;
  return `${text}, ${t("counted {time}", { time: format.relative(at) })}`;
}

/** Up to how many limits, paused queues, unknown tasks and overdue schedules are named. */
const MOST_NAMED = 12;

/** Up to how many queues are drawn: with 10,000 of them, a browser would show nothing for 20 s. */
const MOST_QUEUES = 100;

/** The first of a list in a line, and how many more the page with all has. @param {any[]} list @param {number} most @param {(each: any) => import("../dom.js").Children} shown @param {(count: number) => string} rest @param {string} page */
function firstOf(list, most, shown, rest, page) {
  return [
    list.slice(0, most).map((each, at) => [at > 0 && " · ", shown(each)]),
    list.length > most && [" · ", link(page, rest(list.length - most))],
  ];
}

/** The limits, those that most jobs wait for first, with their keys. @param {any} data */
function limitsPanel(data) {
  const busy = data.limits.filter((/** @type {any} */ limit) => limit.waiting > 0);
  const idle = data.limits.filter((/** @type {any} */ limit) => limit.waiting === 0);
  return panel(
    t("Limits"),
    { aside: link("limits", t("All limits")), hint: countedAgo(data), class: "lead" },
    data.counted_at === null
      ? counting()
      : data.limits.length === 0
        ? empty(
            t("No limits"),
            t("A limit of a task appears here with the jobs that wait for it. To see an example, try the demo, which has a store of its own:"),
            command("demo"),
          )
        : [
            busy.some((/** @type {any} */ limit) => limit.worst.length > 0) && heatLegend(),
            h("div", { class: "limit-maps", key: "maps" }, busy.slice(0, MOST_NAMED).map(limitMap)),
            busy.length > MOST_NAMED && h("p", { class: "hint", key: "more" }, link("limits", format.plural(busy.length - MOST_NAMED, "more limit"))),
            idle.length > 0 && idleLimits(idle, busy.length > 0),
          ],
  );
}

/** @param {any} limit */
function limitMap(limit) {
  return h(
    "div",
    { class: "limit-map", key: limit.limit },
    h(
      "p",
      { class: "limit-head" },
      h("a", { href: address(["limits", limit.limit]) }, h("b", null, breakable(limit.limit))),
      ruleLabel(limit.rule),
      limit.is_paused && badge("paused"),
      h(
        "span",
        { class: "num" },
        t("{jobs} for {keys}", {
          jobs: format.plural(limit.waiting, "job waiting", "jobs waiting"),
          keys: format.plural(limit.keys, "key"),
        }),
      ),
    ),
    limit.worst.length > 0 && heatMap(limit),
  );
}

/** @param {any[]} idle @param {boolean} isRest whether jobs wait for other limits */
function idleLimits(idle, isRest) {
  return h(
    "p",
    { class: "idle-limits", key: "idle" },
    isRest ? t("No job waits for the other limits:") : t("No job waits for a limit:"),
    " ",
    firstOf(
      idle,
      MOST_NAMED,
      (limit) => [link(address(["limits", limit.limit]), breakable(limit.limit)), " ", ruleLabel(limit.rule), limit.is_paused && [" ", badge("paused")]],
      (count) => format.plural(count, "more limit"),
      "limits",
    ),
  );
}

/** @param {any} data */
function queuesPanel(data) {
  const ranked = [...data.queues].sort((a, b) => trouble(b) - trouble(a) || b.lag - a.lag || b.waiting - a.waiting);
  const busy = ranked.filter((queue) => trouble(queue) > 0);
  const idle = ranked.filter((queue) => trouble(queue) === 0);
  return panel(
    t("Queues"),
    { aside: link("queues", t("All queues")), hint: countedAgo(data) },
    (busy.length > 0 || !idle.length) &&
      table({
        label: t("Queues"),
        rows: busy.slice(0, MOST_QUEUES),
        key: (queue) => queue.queue,
        extra: "compact",
        empty: data.counted_at === null ? counting() : empty(
          t("No queues yet"),
          t("A queue appears here when a job is enqueued. To see an example, try the demo, which has a store of its own:"),
          command("demo"),
        ),
        columns: [
          {
            name: t("Queue"),
            cell: (queue) => [
              link(address(["queues", queue.queue]), h("b", null, breakable(queue.queue))),
              " ",
              queue.paused_at && badge("paused"),
            ],
          },
          { name: t("Lag"), align: "right", cell: (queue) => lag(queue) },
          { name: t("Waiting"), align: "right", cell: (queue) => format.count(queue.waiting) },
          { name: t("Running"), align: "right", cell: (queue) => format.count(queue.running) },
          {
            name: t("Failed"),
            align: "right",
            cell: (queue) => h("span", { class: queue.failed ? "bad-text" : "faint" }, format.count(queue.failed)),
          },
        ],
      }),
    busy.length > MOST_QUEUES && h("p", { class: "hint", key: "more" }, link("queues", format.plural(busy.length - MOST_QUEUES, "more queue"))),
    idle.length > 0 &&
      h(
        "details",
        { class: "idle-queues", key: "idle" },
        h("summary", null, format.plural(idle.length, "idle queue")),
        h(
          "p",
          null,
          firstOf(idle, MOST_QUEUES, (queue) => link(address(["queues", queue.queue]), breakable(queue.queue)), (count) => format.plural(count, "more queue"), "queues"),
        ),
      ),
  );
}

/** How much a queue needs attention: 3 paused, 2 its ready jobs wait for slots, 1 it has jobs or failures, 0 idle. @param {any} queue */
export function trouble(queue) {
  if (queue.paused_at) return 3;
  if (queue.lag > 10) return 2;
  return queue.waiting > 0 || queue.running > 0 || queue.failed > 0 ? 1 : 0;
}

/** @param {any} queue */
export function lag(queue) {
  const tone = queue.lag > 60 ? "bad-text" : queue.lag > 10 ? "warn-text" : queue.lag > 0 ? "" : "faint";
  return h(
    "span",
    { class: tone, title: t("How long the oldest ready job has waited for a free slot") },
    queue.lag > 10 && icon("warning"),
    format.duration(queue.lag),
  );
}

/** @param {any} data */
function nodesPanel(data) {
  const { alive, silent, gone, slots } = data.nodes;
  return panel(
    t("Nodes"),
    { aside: link("nodes", t("All nodes")), class: "nodes-line" },
    h(
      "p",
      { class: "node-counts" },
      badge(alive > 0 ? "alive" : "silent", t("{alive} alive", { alive: format.count(alive) })),
      silent > 0 && badge("silent", t("{silent} silent", { silent: format.count(silent) })),
      gone > 0 && badge("gone", t("{gone} gone", { gone: format.count(gone) })),
      slots > 0 && h("span", { class: "faint" }, t("{slots} in total", { slots: format.plural(slots, "slot") })),
    ),
  );
}
