/** A queue: its jobs by state, what they did, its tasks and limits, its last jobs and failures. */

import { loadHistory, spanOf, spanTabs, threeCharts, totals } from "../activity.js";
import { get, path } from "../api.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { jobsPanel } from "../job/short_list.js";
import { drawnLimits } from "../limits/drawn.js";
import { badge, breakable, copyCommand, empty, heading, link, panel } from "../parts.js";
import { queueToggle } from "../queue_toggle.js";
import { address } from "../router.js";
import { countedAgo, lag } from "./overview.js";

/** How many jobs each list has. */
const LISTED = 8;
/** The views and states that are counted, with their filters. @type {[string, Record<string, string>][]} */
const COUNTED = [
  ["running", { state: "running" }],
  ["ready", { view: "ready" }],
  ["throttled", { view: "throttled" }],
  ["scheduled", { view: "scheduled" }],
  ["blocked", { view: "blocked" }],
  ["failed", { state: "failed" }],
];

/** @type {import("../page.js").PageDefinition} */
export const queue = {
  title: ({ params }) => `Queue ${params.name}`,
  every: 10_000,
  load: async ({ route }, signal) => {
    const name = route.params.name;
    const [details, history, recent, failed] = await Promise.all([
      get(path("queues", name), {}, signal),
      loadHistory(route, { queue: name }, signal),
      get("jobs", { queue: name, count: LISTED }, signal),
      get("jobs", { queue: name, state: "failed", count: LISTED }, signal),
    ]);
    return { ...details, history, recent: recent.items, failed: failed.items };
  },
  view: (context) => {
    const { data, route } = context;
    const name = route.params.name;
    const range = spanOf(route);
    const subject = { queue: name };
    return [
      heading(name, {
        crumbs: [["Queues", "queues"]],
        badges: data.queue?.paused_at && badge("paused"),
        actions: [
          spanTabs(route, ["queues", name]),
          copyCommand(command("jobs", "list", "--queue", name)),
          data.queue && queueToggle(context, data.queue),
        ],
      }),
      jobCounts(data, name),
      totals(data.history, range, subject),
      h("div", { class: "three charts", key: "charts" }, threeCharts(data.history, range, subject)),
      h(
        "div",
        { class: "two", key: "jobs" },
        jobsPanel("Recent jobs", data.recent, { href: address(["jobs"], subject), none: "No jobs of this queue are kept." }),
        jobsPanel("Recent failures", data.failed, {
          href: address(["jobs"], { ...subject, state: "failed" }),
          more: link(address(["failures"], { ...subject, span: "24h" }), "By root cause"),
          none: "No failed jobs of this queue are kept.",
        }),
      ),
      h(
        "div",
        { class: "two", key: "declared" },
        panel(
          "Tasks",
          {},
          data.tasks.length > 0
            ? h(
                "ul",
                { class: "names" },
                data.tasks.map((/** @type {string} */ task) =>
                  h("li", { key: task }, link(address(["tasks", task]), breakable(task))),
                ),
              )
            : h("p", { class: "faint" }, "This app declares no task for this queue."),
        ),
        drawnLimits(data.limits, "The jobs of this queue draw on no limit that this app declares."),
      ),
    ];
  },
};

/** @param {any} data @param {string} name */
function jobCounts(data, name) {
  if (!data.queue)
    return h(
      "div",
      { class: "panel", key: "counts" },
      data.counted_at === null
        ? empty("Counting jobs …", "This store holds many jobs. The counts appear here when they are ready.")
        : empty("No jobs in this queue", "No job of this queue waits or runs, and the queue is not paused."),
    );
  return panel(
    "Jobs",
    { hint: countedAgo(data) },
    h(
      "p",
      { class: "node-counts" },
      COUNTED.map(([state, filter]) =>
        h(
          "a",
          { key: state, href: address(["jobs"], { queue: name, ...filter }) },
          badge(state, `${format.count(data.queue[state])} ${state}`),
        ),
      ),
      h("span", { class: "faint" }, "Lag ", lag(data.queue)),
    ),
  );
}
