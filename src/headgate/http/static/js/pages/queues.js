/** Queues: what waits and runs in them, what they have done, and pausing them; trouble comes first. */

import { activityHint, failuresCell, throughputCell } from "../activity.js";
import { get } from "../api.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { t, word } from "../language.js";
import { badge, breakable, copyCommand, empty, heading, link, panel, when } from "../parts.js";
import { queueToggle } from "../queue_toggle.js";
import { address } from "../router.js";
import { busyTable, declared } from "../table.js";
import { countedAgo, counting, lag, trouble } from "./overview.js";

/** @typedef {import("../page.js").Context} Context */

/** @type {import("../page.js").PageDefinition} */
export const queues = {
  title: () => t("Queues"),
  load: async (_, signal) => get("queues", {}, signal),
  view: (context) => [
    heading(t("Queues"), { actions: copyCommand(command("queues", "list")) }),
    panel(
      t("All queues"),
      { class: "bare tall-rows", hint: [activityHint(context.data), countedAgo(context.data)].filter(Boolean).join(", ") },
      queueTable(context),
    ),
    h(
      "p",
      { class: "hint", key: "hint" },
      t("Lag: how long the oldest ready job has waited for a free slot. If it grows, add workers or slots. Undeclared: no running worker declares the task of the job, so start one that does. Oldest: how long the oldest due job has waited, including the time it waits for its limits."),
    ),
  ],
};

/** @param {Context} context */
function queueTable(context) {
  const { items } = context.data;
  const jobs = (/** @type {string} */ state) => (/** @type {any} */ queue) =>
    h(
      "a",
      { href: address(["jobs"], { queue: queue.queue, state }), class: queue[state] ? "" : "faint" },
      format.count(queue[state]),
    );
  return busyTable({
    label: t("Queues"),
    extra: "two-line",
    rows: [...items].sort((one, other) => attention(other) - attention(one)),
    key: (queue) => queue.queue,
    empty: context.data.counted_at === null ? counting() : empty(
      t("No queues yet"),
      t("This app declares no queue, and its store has no jobs. To see an example, try the demo, which has a store of its own:"),
      command("demo"),
    ),
    columns: [
      ...declared("queues", items, {
        queue: (queue) => [
          link(address(["queues", queue.queue]), h("b", null, breakable(queue.queue))),
          queue.paused_at && h("span", { class: "cell-below" }, badge("paused"), " ", when(queue.paused_at)),
        ],
        lag,
        waiting: (queue) => [jobs("waiting")(queue), waitingFor(queue)],
        running: jobs("running"),
        oldest: { extra: "wide-cell" },
        throughput: { extra: "lead-cell", cell: (queue) => throughputCell(queue, { queue: queue.queue }) },
        wait_p95: { extra: "wide-cell" },
        failure_share: (queue) => failuresCell(queue, { queue: queue.queue }),
        failed: { extra: "wide-cell", cell: (queue) => h("span", { class: queue.failed ? "bad-text" : "" }, jobs("failed")(queue)) },
      }),
      { name: t("Actions"), align: "right", extra: "wide-cell", cell: (queue) => queueToggle(context, queue) },
    ],
  }, (queue) => attention(queue) === 0, (count) => format.plural(count, "idle queue"));
}

/** How much a queue needs attention, as on the overview, where nothing is known of its last minutes. @param {any} queue */
function attention(queue) {
  return Math.max(trouble(queue), queue.failure_share ? 2 : queue.throughput ? 1 : 0);
}

/** What the waiting jobs of a queue wait for. @param {any} queue */
function waitingFor(queue) {
  const views = ["ready", "throttled", "scheduled", "blocked", "undeclared"].filter((view) => queue[view] > 0);
  if (!views.length) return null;
  return h(
    "span",
    { class: "cell-below faint" },
    views.map((view, at) => [
      at > 0 && " · ",
      h(
        "a",
        { key: view, href: address(["jobs"], view === "undeclared" ? { queue: queue.queue, state: "waiting" } : { queue: queue.queue, view }) },
        `${format.count(queue[view])} ${word(view)}`,
      ),
    ]),
  );
}
