/** One key of a limit: its budget, its use over time, who waits and who holds. */

import { get, optional, path } from "../api.js";
import { nextSlot, ruleWords } from "../limits/buckets.js";
import { timeChart } from "../charts.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { holderLink } from "../job/why.js";
import {
  allowed,
  badge,
  bucketMarks,
  clock,
  countdown,
  empty,
  facts,
  gauge,
  heading,
  jobLink,
  link,
  panel,
  tabs,
  when,
} from "../parts.js";
import { address } from "../router.js";
import { brief, cliForm, parseRule, told } from "../rule.js";
import { askDeclared } from "../limits/declared.js";
import { patternOf } from "../limits/settings.js";
import { steering } from "../limits/steering.js";
import { everyStep, together } from "../steps.js";
import { table } from "../table.js";
import { auditPanel } from "../limits/verdicts.js";

/** @typedef {import("../page.js").Context} Context */

const ASKED = 100;
const SHOWN = 8;
/** For how many seconds the use of a key is kept. */
const LONGEST = 86_400;
const SPANS = /** @type {Record<string, [string, number]>} */ ({
  "15m": ["15 min", 900],
  "1h": ["1 h", 3600],
  "24h": ["24 h", 86_400],
});

/** @type {import("../page.js").PageDefinition} */
export const key = {
  title: ({ params }) => `${params.limit} ${format.keyName(params.key)}`,
  every: 5_000,
  load: askKey,
  view: keyView,
};

/** @param {Context} context @param {AbortSignal} signal */
async function askKey(context, signal) {
  const { limit: name, key } = context.route.params;
  const known = await askDeclared(name, signal);
  // What counts at an instant has started in the period before it, so that is asked for as well.
  const parsed = parseRule(cliForm(known.declared?.rule ?? ""), false);
  const period = "error" in parsed ? 0 : (parsed.seconds ?? 0);
  const [bucket, waiting, count, history, audit] = await Promise.all([
    optional(get(path("limits", name, "bucket"), { key }, signal)),
    get("jobs", { limit: name, key, state: "waiting", order: "oldest", count: ASKED }, signal),
    optional(get("jobs/count", { limit: name, key, state: "waiting" }, signal)),
    optional(get(path("limits", name, "history"), { key, span: Math.min(spanOf(context) + period, LONGEST) }, signal)),
    known.countsStarts ? optional(get(path("limits", name, "audit"), { key }, signal)) : null,
  ]);
  // Where each stands is a question of its own; it is asked for those that are first in line. A job that was retried is
  // old, and stands behind those that were due before it all the same.
  const line = waiting.items.toSorted(inLine).slice(0, SHOWN);
  const first = await Promise.all(
    line.map((/** @type {any} */ job) => optional(get(path("jobs", job.id, "explain"), {}, signal))),
  );
  const items = line.map((/** @type {any} */ job, /** @type {number} */ at) => ({
    ...job,
    status: first[at]?.status ?? null,
  }));
  items.sort(
    (/** @type {any} */ a, /** @type {any} */ b) => (a.status?.place ?? Infinity) - (b.status?.place ?? Infinity),
  );
  return { ...known, bucket, waiting: items, count, history, audit };
}

/** The order of a lane. @param {any} a @param {any} b */
function inLine(a, b) {
  return b.priority - a.priority || Date.parse(a.run_at) - Date.parse(b.run_at);
}

/** @param {Context} context */
function spanOf({ route }) {
  return (SPANS[route.query.get("span") ?? ""] ?? SPANS["1h"])[1];
}

/** @param {Context} context */
function keyView(context) {
  const { data, route } = context;
  const { limit: name, key } = route.params;
  const { bucket } = data;
  const exact = data.settings.find((/** @type {any} */ setting) => setting.scope === "key" && setting.target === key);
  const target = {
    limit: name,
    key,
    isPaused: bucket?.is_paused ?? exact?.is_paused ?? false,
    isSet: Boolean(exact?.rule),
    rule: bucket?.rule ?? data.declared?.rule ?? null,
    grantsPermits: data.declared?.counts_starts === false,
  };
  return [
    heading(format.keyName(key), {
      crumbs: [
        ["Limits", "limits"],
        [name, address(["limits", name])],
      ],
      marks: bucket && bucketMarks(bucket),
      actions: steering(context, target),
    }),
    h("div", { class: "two budget", key: "budget" }, budget(name, key, bucket, data), historyPanel(context)),
    h(
      "div",
      { class: "two wide-left", key: "who" },
      waitingPanel(name, key, data),
      h("div", { class: "stack" }, holdersPanel(bucket), auditPanel(name, data.audit, key)),
    ),
  ];
}

/** @param {string} name @param {string} key @param {any} bucket @param {any} data */
function budget(name, key, bucket, data) {
  const rule = bucket?.rule ?? data.declared?.rule;
  if (!bucket)
    return panel(
      "Budget",
      {},
      empty("Nothing used", [
        rule ? `The rule is ${brief(rule)}, and ` : "",
        "nothing that counts was started for this key: its whole budget is free.",
      ]),
    );
  const most = allowed(bucket);
  const member = data.settings.find(
    (/** @type {any} */ setting) => setting.scope === "member" && setting.target === patternOf(key),
  );
  const isPenalized = bucket.penalized_until && Date.parse(bucket.penalized_until) > format.now();
  return panel(
    "Budget",
    { hint: rule ? (told(rule) ?? rule) : "not declared here" },
    h(
      "div",
      { class: "budget-big" },
      h(
        "p",
        { class: "budget-used num" },
        bucket.used === null ? "–" : format.count(bucket.used),
        most !== null && h("small", null, ` of ${format.count(most)} used`),
      ),
      gauge({
        used: bucket.used,
        allowed: most,
        label: `Used of ${name} ${key}`,
        isLarge: true,
        state: bucket.is_paused || isPenalized ? "paused" : "",
      }),
    ),
    facts(
      [
        ["Left", bucket.available === null ? "not known here" : format.count(bucket.available)],
        [
          "Waiting",
          link(address(["jobs"], { state: "waiting", limit: name, key }), format.plural(bucket.waiting, "job")),
        ],
        ["Next slot", nextSlot(bucket)],
        ...(member ? [/** @type {[string, any]} */ (["Tier", member.tier])] : []),
        ["Rule", [ruleWords(rule), bucket.is_set && h("span", { class: "faint" }, " (set at run time)")]],
        ...(isPenalized
          ? [
              /** @type {[string, any]} */ ([
                "Penalised until",
                [clock(bucket.penalized_until), " · ", countdown(bucket.penalized_until)],
              ]),
            ]
          : []),
      ],
      "facts-wide",
    ),
  );
}

/** @param {Context} context */
function historyPanel(context) {
  const { history, audit } = context.data;
  const { limit: name, key } = context.route.params;
  const span = spanOf(context);
  const aside = tabs(
    "Time range of use",
    Object.entries(SPANS).map(([word, [label, seconds]]) => ({
      name: label,
      href: address(["limits", name]) + "?" + new URLSearchParams({ key, ...(word === "1h" ? {} : { span: word }) }),
      isCurrent: seconds === span,
    })),
  );
  const points = history?.points ?? [];
  if (!points.length)
    return panel(
      "Use",
      { aside },
      empty(
        "No history of this key",
        history
          ? "Nothing was started for it in this time, or its use is not kept yet."
          : "This store keeps no history of use.",
      ),
    );
  const to = format.now();
  const from = to - span * 1000;
  const { step, bound } = history;
  // A window that is longer than a step is looked at as a whole, as its rule does.
  const steps = bound ? Math.max(1, Math.round(bound.per / step)) : 1;
  const window = steps * step;
  // Some rules let more start in a window than they name, such as what was saved up; the audit knows.
  const most = bound && (window >= bound.per && audit?.[0] ? audit[0].bound : (bound.count * window) / bound.per);
  const used = everyStep(points, step, from - window * 1000, to, (point) => point.used, 0);
  const started = together(used, steps).filter(([at]) => at >= from);
  // The history ends some steps ago; where it counts what the bucket counts, the bucket knows how it goes on.
  const { bucket } = context.data;
  if (bucket && bucket.used !== null && bound && window === bound.per && !/ burst /.test(bucket.rule ?? ""))
    started.push([to, bucket.used]);
  return panel(
    "Use",
    { aside, hint: `what started in ${format.duration(window)}` },
    timeChart({
      label: `Use of ${name} ${key}: what started in ${format.duration(window)}`,
      from,
      to,
      step: step * 1000,
      unit: format.rate,
      isWhole: true,
      isContinuous: true,
      bound: most && { value: most, name: `allowed: ${format.rate(most)}` },
      series: [{ name: "Started", tone: "blue", kind: "area", values: started }],
    }),
  );
}

/** @param {string} name @param {string} key @param {any} data */
function waitingPanel(name, key, data) {
  const all = data.count?.count ?? data.bucket?.waiting ?? 0;
  return panel(
    "First in line",
    {
      class: "bare",
      hint: all
        ? `${format.plural(data.waiting.length, "job")} of ${data.count?.is_exact === false ? "at least " : ""}${format.count(all)}`
        : "",
      aside:
        all > 0 && link(address(["jobs"], { state: "waiting", limit: name, key, order: "oldest" }), "All that wait"),
    },
    table({
      label: "First in line",
      rows: data.waiting,
      key: (job) => job.id,
      empty: empty("Nobody waits", "No job waits that draws on this key."),
      columns: [
        { name: "Place", align: "right", cell: (job) => (job.status?.place ? format.count(job.status.place) : "–") },
        { name: "Job", cell: (job) => [jobLink(job.id), h("span", { class: "cell-below" }, job.task)] },
        { name: "Enqueued", align: "right", cell: (job) => when(job.enqueued_at) },
        {
          name: "Starts about",
          align: "right",
          cell: (job) =>
            job.status?.is_scheduled
              ? ["due ", countdown(job.run_at)]
              : countdown(job.status?.predicted_start, "when others end"),
        },
      ],
    }),
  );
}

/** @param {any} bucket */
function holdersPanel(bucket) {
  const holders = bucket?.holders ?? [];
  if (!holders.length) return null;
  return panel(
    "Who holds permits",
    { class: "bare" },
    table({
      label: "Who holds permits",
      rows: holders,
      key: (holder) => holder.id,
      columns: [
        { name: "Holder", cell: (holder) => holderLink(holder) },
        {
          name: "State",
          cell: (holder) =>
            holder.state
              ? badge(holder.state)
              : h("span", { class: "faint" }, holder.kind === "batch" ? "not final" : "not stored any more"),
        },
        { name: "Permits", align: "right", cell: (holder) => format.count(holder.cost) },
      ],
    }),
  );
}
