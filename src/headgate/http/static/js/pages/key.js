/** One key of a limit: its usage now and over time, its waiting jobs, and the holders of its permits. */

import { SPANS } from "../activity.js";
import { get, optional, path } from "../api.js";
import { nextSlot, ruleLabel } from "../limits/buckets.js";
import { chartPanel, deployMarks } from "../charts.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { t, withElements } from "../language.js";
import { holderLink } from "../job/why.js";
import {
  allowed,
  badge,
  bucketBadges,
  clock,
  countdown,
  empty,
  facts,
  gauge,
  heading,
  isPenalized,
  jobLink,
  link,
  panel,
  rangeTabs,
  when,
} from "../parts.js";
import { address } from "../router.js";
import { describeStored, shortRule } from "../rule.js";
import { loadDeclared } from "../limits/declared.js";
import { tierOf } from "../limits/settings.js";
import { limitActions } from "../limits/actions.js";
import { fillSteps, rollingSum } from "../steps.js";
import { table } from "../table.js";
import { loadWhatIf, whatIfPanel } from "../limits/what_if.js";
import { auditPanel, auditState } from "../limits/audit.js";

/** @typedef {import("../page.js").Context} Context */

/** @type {import("../page.js").PageDefinition} */
export const key = {
  title: ({ params }) => `${params.limit} ${format.keyName(params.key)}`,
  every: 5_000,
  ui: () => ({ audit: null, whatIf: null }),
  load: loadKey,
  view: keyView,
};

/** @param {Context} context @param {AbortSignal} signal */
async function loadKey(context, signal) {
  const { limit: name, key } = context.route.params;
  // `get` leaves out empty values, and the key of a limit without keys is empty.
  const ofKey = new URLSearchParams({ key });
  const [declaration, bucket, next, waiting, history, whatIf] = await Promise.all([
    loadDeclared(name, signal),
    optional(get(path("limits", name, "bucket"), { key }, signal)),
    get(path("limits", name, "next-jobs"), { key }, signal),
    // The jobs of a key are counted from its lanes, however many others wait.
    get(`jobs/count?${ofKey}`, { state: "waiting", limit: name }, signal),
    optional(get(`${path("limits", name, "history")}?${ofKey}`, { span: spanOf(context).span, with_period_before: true }, signal)),
    loadWhatIf(context, signal),
  ]);
  return { ...declaration, bucket, next, waiting, history, whatIf };
}

/** How many jobs of the key wait: as counted, or at least as many as the bucket has. @param {any} data */
function waitingText({ waiting, bucket }) {
  if (waiting.is_exact) return format.plural(waiting.count, "job");
  return t("{count} jobs", { count: format.bounded(Math.max(waiting.count, bucket?.waiting ?? 0), false) });
}

/** @param {Context} context */
function spanOf({ route }) {
  return SPANS[route.query.get("span") ?? ""] ?? SPANS["1h"];
}

/** @param {Context} context */
function keyView(context) {
  const { data, route } = context;
  const { limit: name, key } = route.params;
  const { bucket } = data;
  const ownSetting = data.settings.find(
    (/** @type {any} */ setting) => setting.scope === "key" && setting.target === key,
  );
  const target = {
    limit: name,
    key,
    isPaused: bucket?.is_paused ?? ownSetting?.is_paused ?? false,
    isSet: Boolean(ownSetting?.rule),
    rule: bucket?.rule ?? data.declared?.rule ?? null,
    grantsPermits: data.declared?.counts_starts === false,
  };
  return [
    heading(format.keyName(key), {
      crumbs: [
        [t("Limits"), "limits"],
        [name, address(["limits", name])],
      ],
      badges: bucket && bucketBadges(bucket),
      actions: limitActions(context, target),
    }),
    h("div", { class: "two budget", key: "usage" }, usagePanel(name, key, bucket, data), historyPanel(context)),
    whatIfPanel(context, bucket, ownSetting),
    h(
      "div",
      { class: "two", key: "jobs" },
      waitingPanel(name, key, data),
      h("div", { class: "stack" }, holdersPanel(bucket), auditPanel(context)),
    ),
  ];
}

/** @param {string} name @param {string} key @param {any} bucket @param {any} data */
function usagePanel(name, key, bucket, data) {
  const rule = bucket?.rule ?? data.declared?.rule;
  if (!bucket)
    return panel(
      t("Usage"),
      {},
      empty(t("Nothing used"), [rule ? `${t("The rule is {rule}.", { rule: shortRule(rule) })} ` : "", t("This key has not used its limit.")]),
    );
  const capacity = allowed(bucket);
  const tier = tierOf(data.settings, key);
  return panel(
    t("Usage"),
    { hint: rule ? (describeStored(rule) ?? rule) : t("not declared by this app") },
    h(
      "div",
      { class: "budget-big" },
      h(
        "p",
        { class: "budget-used num" },
        bucket.used === null ? "–" : format.count(bucket.used),
        capacity !== null && h("small", null, " ", t("of {count} used", { count: format.count(capacity) })),
      ),
      gauge({
        used: bucket.used,
        allowed: capacity,
        label: t("Used of {name} {key}", { name, key }),
        isLarge: true,
        state: bucket.is_paused || isPenalized(bucket) ? "paused" : "",
      }),
    ),
    facts(
      [
        [t("Remaining"), bucket.available === null ? t("unknown") : format.count(bucket.available)],
        [
          t("Waiting"),
          link(address(["jobs"], { state: "waiting", limit: name, key }), waitingText(data)),
        ],
        [t("Next slot"), nextSlot(bucket)],
        bucket.present && [t("Present rate"), ruleLabel(rule, bucket.present)],
        tier && [t("Tier"), tier],
        [t("Rule"), [ruleLabel(rule), bucket.is_set && h("span", { class: "faint" }, ` (${t("set at run time")})`)]],
        isPenalized(bucket) && [t("Penalized until"), [clock(bucket.penalized_until), " · ", countdown(bucket.penalized_until)]],
      ],
      "facts-wide",
    ),
  );
}

/** @param {Context} context */
function historyPanel(context) {
  const { history } = context.data;
  const { limit, key } = context.route.params;
  const range = spanOf(context);
  const aside = rangeTabs(t("Time range of usage"), SPANS, range, (name) =>
    address(["limits", limit]) + "?" + new URLSearchParams({ key, ...(name === "1h" ? {} : { span: name }) }),
  );
  const points = history?.points ?? [];
  if (!points.length)
    return panel(
      t("History"),
      { aside },
      empty(
        t("No history for this key"),
        history
          ? t("No job of this key started in this time range, or the history is not written yet.")
          : t("This store keeps no history of limits."),
      ),
    );
  const to = format.now();
  const from = to - range.span * 1000;
  const { step, bound } = history;
  // If the window of the rule is longer than a step, each value is the sum over a window, as the rule counts.
  const steps = bound ? Math.max(1, Math.round(bound.per / step)) : 1;
  const window = steps * step;
  // Some rules allow more starts in a window than their count, such as a saved burst; an audit has the exact bound.
  const audited = auditState(context).audit?.items[0];
  const allowedStarts = bound && (window >= bound.per && audited ? audited.bound : (bound.count * window) / bound.per);
  const starts = fillSteps(points, step, from - window * 1000, to, (point) => point.used, 0);
  const started = rollingSum(starts, steps).filter(([at]) => at >= from);
  // The history ends some steps ago. Where the bucket counts the same starts, its value is the newest one.
  const { bucket } = context.data;
  if (bucket && bucket.used !== null && bound && window === bound.per && !/ burst /.test(bucket.rule ?? ""))
    started.push([to, bucket.used]);
  return chartPanel(
    t("History"),
    { aside, hint: t("starts in {duration}", { duration: format.duration(window) }) },
    {
      label: t("Usage of {limit} {key}: starts in {duration}", { limit, key, duration: format.duration(window) }),
      from,
      to,
      step: step * 1000,
      unit: format.rate,
      isWhole: true,
      isContinuous: true,
      marks: deployMarks(history.deploys),
      bound: allowedStarts && { value: allowedStarts, name: t("allowed: {rate}", { rate: format.rate(allowedStarts) }) },
      series: [{ name: t("Started"), tone: "blue", kind: "area", values: started }],
    },
  );
}

/** @param {string} name @param {string} key @param {any} data */
function waitingPanel(name, key, data) {
  const { items } = data.next;
  return panel(
    t("Next jobs"),
    {
      class: "bare",
      hint: items.length ? t("{count} of {total}", { count: format.count(items.length), total: waitingText(data) }) : "",
      aside:
        items.length > 0 && link(address(["jobs"], { state: "waiting", limit: name, key, order: "oldest" }), t("All waiting jobs")),
    },
    table({
      label: t("Next jobs"),
      rows: items,
      key: (job) => job.id,
      empty: empty(t("No waiting jobs"), t("No job waits for this key.")),
      columns: [
        { name: t("Position"), align: "right", cell: (job) => format.count(job.position) },
        { name: t("Job"), cell: (job) => [jobLink(job.id), h("span", { class: "cell-below" }, job.task)] },
        { name: t("Enqueued"), align: "right", cell: (job) => when(job.enqueued_at) },
        { name: t("Starts"), align: "right", cell: (job) => startOf(job, data) },
      ],
    }),
  );
}

/** When a waiting job starts. @param {any} job @param {any} data */
function startOf(job, { bucket, declared }) {
  if (job.is_scheduled) return withElements("due {time}", { time: countdown(job.run_at) });
  if (bucket?.is_paused || job.waits_for?.is_paused) return t("when resumed");
  // Nothing is known of what is used while the limit's own store does not answer.
  const start = bucket?.used === null ? null : job.predicted_start;
  return countdown(start, declared?.counts_starts ? t("when its limits allow") : t("when a permit is free"));
}

/** @param {any} bucket */
function holdersPanel(bucket) {
  const holders = bucket?.holders ?? [];
  if (!holders.length) return null;
  return panel(
    t("Permit holders"),
    { class: "bare" },
    table({
      label: t("Permit holders"),
      rows: holders,
      key: (holder) => holder.id,
      columns: [
        { name: t("Holder"), cell: (holder) => holderLink(holder) },
        {
          name: t("State"),
          cell: (holder) =>
            holder.state
              ? badge(holder.state)
              : h("span", { class: "faint" }, holder.kind === "batch" ? t("pending") : holder.kind === "job" && t("no longer stored")),
        },
        { name: t("Permits"), align: "right", cell: (holder) => format.count(holder.cost) },
      ],
    }),
  );
}
