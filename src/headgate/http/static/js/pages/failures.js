/** Failures: the jobs that have failed, grouped by task and root cause. */

import { get } from "../api.js";
import { sparkline } from "../charts.js";
import { command, filterOptions } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { causeText, placeText } from "../job/cause.js";
import { t, withElements, word } from "../language.js";
import { copyCommand, empty, heading, link, notice, panel, rangeTabs, when } from "../parts.js";
import { address } from "../router.js";
import { declared, table } from "../table.js";

/** The time ranges by their names in the address; `span` is in seconds. @type {Record<string, {name: string, past: string, span: number | null, options: string[]}>} */
const SPANS = {
  "1h": { name: "1 h", past: t("in the last hour"), span: 3600, options: ["--since", "1h"] },
  "24h": { name: "24 h", past: t("in the last 24 hours"), span: 86_400, options: ["--since", "24h"] },
  all: { name: t("All"), past: "", span: null, options: ["--all"] },
};

/** The time range of an address. @param {import("../router.js").Route} route */
export function spanOf(route) {
  return SPANS[route.query.get("span") ?? ""] ?? SPANS["1h"];
}

/** The task or queue in an address. @param {import("../router.js").Route} route @returns {Record<string, string>} */
function subjectOf({ query }) {
  return Object.fromEntries([...query].filter(([name]) => name === "task" || name === "queue"));
}

/** @type {import("../page.js").PageDefinition} */
export const failures = {
  title: () => t("Failures"),
  every: 15_000,
  // Up to ten thousand errors are read for it, so not with each change of a job.
  usesStream: true,
  isFrozen: (context) => context.isListInUse,
  load: ({ route }, signal) => get("failures", { span: spanOf(route).span, ...subjectOf(route) }, signal),
  view: ({ data, route }) => [
    heading(t("Failures"), {
      actions: [
        rangeTabs(t("Time range"), SPANS, spanOf(route), (name) =>
          address(["failures"], { ...subjectOf(route), span: name === "1h" ? null : name }),
        ),
        copyCommand(command("failures", ...spanOf(route).options, ...filterOptions(subjectOf(route)))),
      ],
    }),
    Object.entries(subjectOf(route)).map(([kind, name]) =>
      h("p", { class: "hint", key: kind }, withElements("Only {kind} {name}.", { kind: word(kind), name: h("b", null, name) }), " ", link("failures", t("Show all")), "."),
    ),
    data.is_cut &&
      h(
        "div",
        { class: "notices", key: "notices" },
        notice("info", t("There may be more failures: only the newest {read} were read.", { read: format.count(data.read) })),
      ),
    panel(
      t("By root cause"),
      { class: "bare tall-rows", hint: groupCount(data) },
      table({
        label: t("Failures by root cause"),
        extra: "two-line",
        rows: data.items,
        key: (group) => JSON.stringify([group.task, group.cause]),
        empty: noFailures(route),
        columns: declared("failures", data.items, {
          cause: { extra: "grow", cell: (group) => causeCell(group, route) },
          task: (group) => [
            link(address(["tasks", group.task]), group.task),
            h("span", { class: "cell-below faint" }, t("queue {queue}", { queue: group.queues.join(", ") })),
          ],
          trend: { extra: "trend-cell wide-cell", cell: (group) => sparkline(group.trend, "red", trendLabel(group)) },
          failed: {
            extra: "lead-cell",
            cell: (group) => [
              h("b", { class: group.failed ? "bad-text" : "faint" }, format.count(group.failed)),
              group.keys > 0 && h("span", { class: "cell-below faint" }, format.plural(group.keys, "key")),
            ],
          },
          retrying: { extra: "wide-cell" },
          last_at: (group) => [
            when(group.last_at),
            h("span", { class: "cell-below faint" }, withElements("first {time}", { time: when(group.first_ever_at) })),
          ],
        }),
      }),
    ),
    h(
      "p",
      { class: "hint", key: "hint" },
      t("The root cause of a failure is its innermost exception and the last line of your own code in the traceback. Numbers, ids and quoted values in messages are ignored. Retrying: jobs that failed and wait for their next attempt."),
    ),
  ],
};

/** What a trend shows, in words. @param {any} group */
export function trendLabel(group) {
  const highest = Math.max(...group.trend);
  return t("Failures over time: {count}, at most {highest} in one step", { count: format.count(group.failed + group.retrying), highest: format.count(highest) });
}

/** Whether a root cause is new, is back, or fails for long; nothing if it has stopped. @param {any} group */
export function recurrenceBadge({ recurrence, first_ever_at: at }) {
  const titles = /** @type {Record<string, [string, string]>} */ ({
    new: ["failed", t("First seen in the last 24 hours")],
    "back again": ["scheduled", t("Seen before, and again after 24 hours without it")],
    steady: ["waiting", t("Seen for more than 24 hours")],
  });
  if (!titles[recurrence]) return null;
  const [state, title] = titles[recurrence];
  return h("span", { class: `badge state-${state}`, title: `${title} (${format.instant(at)})` }, word(recurrence));
}

/** @param {any} group @param {import("../router.js").Route} route */
function causeCell(group, route) {
  const { cause } = group;
  return [
    h(
      "a",
      {
        class: "one-line cause-link",
        href: address(["failures", group.id], { span: route.query.get("span") }),
        title: causeText(cause),
      },
      h("b", null, cause.type),
      cause.message && `: ${cause.message}`,
    ),
    h("span", { class: "cell-below faint mono one-line", title: placeText(cause.place) }, placeText(cause.place)),
    recurrenceBadge(group),
  ];
}

/** @param {any} data */
function groupCount(data) {
  if (!data.items.length) return null;
  const groups = format.plural(data.total, "root cause");
  return data.total > data.items.length ? t("the {count} most frequent of {groups}", { count: format.count(data.items.length), groups }) : groups;
}

/** @param {import("../router.js").Route} route */
function noFailures(route) {
  const { past, span } = spanOf(route);
  return empty(
    span === null ? t("No failures") : t("No failures {past}", { past }),
    span === null
      ? t("No retained job has failed, and none waits for a retry.")
      : [link(address(["failures"], { ...subjectOf(route), span: "all" }), t("Show all failures that are kept")), "."],
  );
}
