/** A task: what its jobs did, the limits that they use, its last jobs and failures. */

import { loadSubject, spanTabs, subjectActivity } from "../activity.js";
import { path } from "../api.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import { t, withElements } from "../language.js";
import { enqueueJob } from "../job/enqueue.js";
import { usedLimits } from "../limits/used.js";
import { badge, button, copyCommand, heading, link } from "../parts.js";
import { address } from "../router.js";

/** @type {import("../page.js").PageDefinition} */
export const task = {
  title: ({ params }) => t("Task {name}", { name: params.name }),
  every: 10_000,
  load: ({ route }, signal) => {
    const { name } = route.params;
    return loadSubject(path("tasks", name), route, { task: name }, signal);
  },
  view: (context) => {
    const { data, route } = context;
    const name = route.params.name;
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
      subjectActivity(data, route, { task: name }, {
        jobs: data.recent.next ? t("No jobs of this task among the newest that were read.") : t("No jobs of this task are kept."),
        failures: data.failed.next
          ? t("No failed jobs of this task among the newest that were read.")
          : t("No failed jobs of this task are kept."),
      }),
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
