/** A task: what its jobs did, the limits that they use, its last jobs and failures. */

import { loadHistory, spanOf, spanTabs, threeCharts, totals } from "../activity.js";
import { get, path } from "../api.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import { t, withElements } from "../language.js";
import { enqueueJob } from "../job/enqueue.js";
import { jobsPanel } from "../job/short_list.js";
import { usedLimits } from "../limits/used.js";
import { badge, button, copyCommand, heading, link } from "../parts.js";
import { address } from "../router.js";

/** How many jobs each list has. */
const LISTED = 8;

/** @type {import("../page.js").PageDefinition} */
export const task = {
  title: ({ params }) => t("Task {name}", { name: params.name }),
  every: 10_000,
  load: async ({ route }, signal) => {
    const name = route.params.name;
    const [details, history, recent, failed] = await Promise.all([
      get(path("tasks", name), {}, signal),
      loadHistory(route, { task: name }, signal),
      get("jobs", { task: name, count: LISTED }, signal),
      get("jobs", { task: name, state: "failed", count: LISTED }, signal),
    ]);
    return { ...details, history, recent, failed };
  },
  view: (context) => {
    const { data, route } = context;
    const name = route.params.name;
    const range = spanOf(route);
    const subject = { task: name };
    return [
      heading(name, {
        crumbs: [[t("Tasks"), "tasks"]],
        badges: data.queue === null ? badge("waiting", t("not declared by this app")) : null,
        actions: [
          spanTabs(route, ["tasks", name]),
          data.queue !== null &&
            button(t("Enqueue"), { icon: "bolt", why: context.denied("operate") }, () => void enqueueJob(name)),
          copyCommand(command("jobs", "list", "--task", name)),
        ],
        below:
          data.queue !== null &&
          h(
            "p",
            { class: "hint" },
            withElements("Queue {queue}, unless a call names another", { queue: link(address(["queues", data.queue]), data.queue) }),
            declared(data).map(([name, value]) => [" · ", name, " ", value]),
          ),
      }),
      totals(data.history, range, subject),
      h("div", { class: "three charts", key: "charts" }, threeCharts(data.history, range, subject)),
      h(
        "div",
        { class: "two", key: "jobs" },
        jobsPanel(t("Recent jobs"), data.recent.items, {
          href: address(["jobs"], subject),
          none: data.recent.next ? t("No jobs of this task among the newest that were read.") : t("No jobs of this task are kept."),
        }),
        jobsPanel(t("Recent failures"), data.failed.items, {
          href: address(["jobs"], { ...subject, state: "failed" }),
          more: link(address(["failures"], { ...subject, span: "24h" }), t("By root cause")),
          none: data.failed.next
            ? t("No failed jobs of this task among the newest that were read.")
            : t("No failed jobs of this task are kept."),
        }),
      ),
      usedLimits(data.limits, t("The jobs of this task use no limit that this app declares.")),
    ];
  },
};

/** What else the app declares of the task. @param {any} data @returns {[string, import("../dom.js").Children][]} */
function declared(data) {
  const chips = (/** @type {string[]} */ names) => names.map((name) => h("span", { class: "chip", key: name }, name));
  /** @type {[string, import("../dom.js").Children][]} */
  const items = [];
  if (data.requires.length) items.push([t("Requires the labels"), chips(data.requires)]);
  if (data.tags.length)
    items.push([
      t("Tags"),
      data.tags.map((/** @type {string} */ tag) => [h("a", { key: tag, class: "chip", href: address(["jobs"], { tag }) }, tag)]),
    ]);
  if (data.unique_key !== null) items.push([t("Unique key"), h("code", null, data.unique_key)]);
  return items;
}
