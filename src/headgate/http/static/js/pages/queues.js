/** Queues: their jobs by state, their lag, and pausing them. */

import { get } from "../api.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { t, word } from "../language.js";
import { badge, breakable, copyCommand, empty, heading, link, panel, when } from "../parts.js";
import { queueToggle } from "../queue_toggle.js";
import { address } from "../router.js";
import { table } from "../table.js";
import { countedAgo, counting, lag } from "./overview.js";

/** @typedef {import("../page.js").Context} Context */

/** @type {import("../page.js").PageDefinition} */
export const queues = {
  title: () => t("Queues"),
  load: async (_, signal) => get("queues", {}, signal),
  view: (context) => [
    heading(t("Queues"), { actions: copyCommand(command("queues", "list")) }),
    panel(
      t("All queues"),
      { class: "bare tall-rows", hint: countedAgo(context.data) },
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
  const filter = (
    /** @type {any} */ queue,
    /** @type {Record<string, string>} */ query,
    /** @type {number | undefined} */ value,
  ) =>
    value === undefined
      ? "–"
      : h(
          "a",
          { href: address(["jobs"], { queue: queue.queue, ...query }), class: value ? "" : "faint" },
          format.count(value),
        );
  return table({
    label: t("Queues"),
    rows: context.data.items,
    key: (queue) => queue.queue,
    empty: context.data.counted_at === null ? counting() : empty(
      t("No queues yet"),
      t("This app declares no queue, and its store has no jobs. To see an example, try the demo, which has a store of its own:"),
      command("demo"),
    ),
    columns: [
      {
        name: t("Queue"),
        cell: (queue) => [
          link(address(["queues", queue.queue]), h("b", null, breakable(queue.queue))),
          queue.paused_at && h("span", { class: "cell-below" }, badge("paused"), " ", when(queue.paused_at)),
        ],
      },
      { name: t("Lag"), align: "right", cell: lag },
      { name: t("Oldest"), align: "right", cell: (queue) => format.duration(queue.oldest) },
      {
        name: t("Waiting"),
        align: "right",
        cell: (queue) => [filter(queue, { state: "waiting" }, queue.waiting), waitingFor(queue)],
      },
      { name: t("Running"), align: "right", cell: (queue) => filter(queue, { state: "running" }, queue.running) },
      { name: t("Succeeded"), align: "right", cell: (queue) => filter(queue, { state: "succeeded" }, queue.succeeded) },
      {
        name: t("Failed"),
        align: "right",
        cell: (queue) =>
          h("span", { class: queue.failed ? "bad-text" : "" }, filter(queue, { state: "failed" }, queue.failed)),
      },
      { name: t("Cancelled"), align: "right", cell: (queue) => filter(queue, { state: "cancelled" }, queue.cancelled) },
      { name: t("Skipped"), align: "right", cell: (queue) => filter(queue, { state: "skipped" }, queue.skipped) },
      { name: t("Actions"), align: "right", cell: (queue) => queueToggle(context, queue) },
    ],
  });
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
