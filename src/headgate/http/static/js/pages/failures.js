/** Failures: the jobs that have failed, grouped by task and root cause. */

import { get } from "../api.js";
import { sparkline } from "../charts.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { causeText, placeText } from "../job/cause.js";
import { copyCommand, empty, heading, link, notice, panel, tabs, when } from "../parts.js";
import { address } from "../router.js";
import { table } from "../table.js";

/** The time ranges by their names in the address; `span` is in seconds. @type {Record<string, {name: string, past: string, span: number | null, options: string[]}>} */
export const SPANS = {
  "1h": { name: "1 h", past: "in the last hour", span: 3600, options: ["--since", "1h"] },
  "24h": { name: "24 h", past: "in the last 24 hours", span: 86_400, options: ["--since", "24h"] },
  all: { name: "All", past: "", span: null, options: ["--all"] },
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
  title: () => "Failures",
  every: 15_000,
  // Up to ten thousand errors are read for it, so not with each change of a job.
  usesStream: true,
  isFrozen: (context) => context.isListInUse,
  load: ({ route }, signal) => get("failures", { span: spanOf(route).span, ...subjectOf(route) }, signal),
  view: ({ data, route }) => [
    heading("Failures", {
      actions: [
        tabs(
          "Time range",
          Object.entries(SPANS).map(([name, each]) => ({
            name: each.name,
            href: address(["failures"], { ...subjectOf(route), span: name === "1h" ? null : name }),
            isCurrent: spanOf(route) === each,
          })),
        ),
        copyCommand(command("failures", ...spanOf(route).options)),
      ],
    }),
    Object.entries(subjectOf(route)).map(([kind, name]) =>
      h("p", { class: "hint", key: kind }, `Only of ${kind} `, h("b", null, name), ". ", link("failures", "Show all"), "."),
    ),
    data.is_cut &&
      h(
        "div",
        { class: "notices", key: "notices" },
        notice("info", `There are more failures: these are of the newest ${format.count(data.read)}.`),
      ),
    panel(
      "By root cause",
      { class: "bare tall-rows", hint: groupCount(data) },
      table({
        label: "Failures by root cause",
        rows: data.items,
        key: (group) => JSON.stringify([group.task, group.cause]),
        empty: noFailures(route),
        columns: [
          { name: "Root cause", extra: "grow", cell: (group) => causeCell(group, route) },
          {
            name: "Task",
            cell: (group) => [
              link(address(["tasks", group.task]), group.task),
              h("span", { class: "cell-below faint" }, `queue ${group.queues.join(", ")}`),
            ],
          },
          { name: "Trend", extra: "trend-cell", cell: (group) => sparkline(group.trend, "red", trendLabel(group)) },
          {
            name: "Jobs",
            align: "right",
            cell: (group) => [
              h("b", { class: group.failed ? "bad-text" : "faint" }, format.count(group.failed)),
              group.retrying > 0 && h("span", { class: "cell-below faint" }, `${format.count(group.retrying)} retrying`),
            ],
          },
          {
            name: "Last seen",
            align: "right",
            extra: "time-cell",
            cell: (group) => [
              when(group.last_at),
              h("span", { class: "cell-below faint" }, "first ", when(group.first_at)),
            ],
          },
        ],
      }),
    ),
    h(
      "p",
      { class: "hint", key: "hint" },
      "The root cause of a failure is its innermost exception and the last line of your own code in the traceback. Numbers, ids and quoted values of messages do not count. Retrying: jobs that failed and wait for their next attempt.",
    ),
  ],
};

/** What a trend shows, in words. @param {any} group */
export function trendLabel(group) {
  const highest = Math.max(...group.trend);
  return `Failures over time: ${format.count(group.failed + group.retrying)}, at most ${format.count(highest)} in one step`;
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
  ];
}

/** @param {any} data */
function groupCount(data) {
  if (!data.items.length) return null;
  const groups = format.plural(data.total, "root cause");
  return data.total > data.items.length ? `the ${format.count(data.items.length)} most frequent of ${groups}` : groups;
}

/** @param {import("../router.js").Route} route */
function noFailures(route) {
  const { past, span } = spanOf(route);
  return empty(
    span === null ? "No failures" : `No failures ${past}`,
    span === null
      ? "No job that is kept has failed, and none waits for a retry."
      : [link(address(["failures"], { ...subjectOf(route), span: "all" }), "Show all failures that are kept"), "."],
  );
}
