/** A task: what its jobs did, the limits that they draw on, its last jobs and failures. */

import { loadHistory, spanOf, spanTabs, threeCharts, totals } from "../activity.js";
import { get, path } from "../api.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import { jobsPanel } from "../job/short_list.js";
import { drawnLimits } from "../limits/drawn.js";
import { badge, copyCommand, heading, link } from "../parts.js";
import { address } from "../router.js";

/** How many jobs each list has. */
const LISTED = 8;

/** @type {import("../page.js").PageDefinition} */
export const task = {
  title: ({ params }) => `Task ${params.name}`,
  every: 10_000,
  load: async ({ route }, signal) => {
    const name = route.params.name;
    const [details, history, recent, failed] = await Promise.all([
      get(path("tasks", name), {}, signal),
      loadHistory(route, { task: name }, signal),
      get("jobs", { task: name, count: LISTED }, signal),
      get("jobs", { task: name, state: "failed", count: LISTED }, signal),
    ]);
    return { ...details, history, recent: recent.items, failed: failed.items };
  },
  view: ({ data, route }) => {
    const name = route.params.name;
    const range = spanOf(route);
    const subject = { task: name };
    return [
      heading(name, {
        crumbs: [["Tasks", "tasks"]],
        badges: data.queue === null ? badge("waiting", "not declared by this app") : null,
        actions: [spanTabs(route, ["tasks", name]), copyCommand(command("jobs", "list", "--task", name))],
        below:
          data.queue !== null &&
          h("p", { class: "hint" }, "Queue ", link(address(["queues", data.queue]), data.queue), " unless a call names another"),
      }),
      totals(data.history, range, subject),
      h("div", { class: "three charts", key: "charts" }, threeCharts(data.history, range, subject)),
      h(
        "div",
        { class: "two", key: "jobs" },
        jobsPanel("Recent jobs", data.recent, { href: address(["jobs"], subject), none: "No jobs of this task are kept." }),
        jobsPanel("Recent failures", data.failed, {
          href: address(["jobs"], { ...subject, state: "failed" }),
          more: link(address(["failures"], { ...subject, span: "24h" }), "By root cause"),
          none: "No failed jobs of this task are kept.",
        }),
      ),
      drawnLimits(data.limits, "The jobs of this task draw on no limit that this app declares."),
    ];
  },
};
