/** Queues: their jobs by state, their lag, and pausing them. */

import { get, path } from "../api.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { badge, button, copyCommand, empty, heading, link, panel, when } from "../parts.js";
import { address } from "../router.js";
import { table } from "../table.js";
import { countedAgo, counting, lag } from "./overview.js";

/** @typedef {import("../page.js").Context} Context */

/** @type {import("../page.js").PageDefinition} */
export const queues = {
  title: () => "Queues",
  load: async (_, signal) => get("queues", {}, signal),
  view: (context) => [
    heading("Queues", { actions: copyCommand(command("queues", "list")) }),
    panel(
      "All queues",
      { class: "bare tall-rows", hint: countedAgo(context.data) },
      queueTable(context),
    ),
    h(
      "p",
      { class: "hint", key: "hint" },
      "Lag: how long the oldest ready job has waited for a free slot. If it grows, add workers or slots. Oldest: how long the oldest due job has waited, including the time it waits for its limits.",
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
    label: "Queues",
    rows: context.data.items,
    key: (queue) => queue.queue,
    empty: context.data.counted_at === null ? counting() : empty(
      "No queues yet",
      "This app declares no queue, and its store has no jobs. To try Headgate:",
      command("demo"),
    ),
    columns: [
      {
        name: "Queue",
        cell: (queue) => [
          link(address(["jobs"], { queue: queue.queue }), h("b", null, queue.queue)),
          queue.paused_at && h("span", { class: "cell-below" }, badge("paused"), " ", when(queue.paused_at)),
        ],
      },
      { name: "Lag", align: "right", cell: lag },
      { name: "Oldest", align: "right", cell: (queue) => format.duration(queue.oldest) },
      {
        name: "Waiting",
        align: "right",
        cell: (queue) => [filter(queue, { state: "waiting" }, queue.waiting), waitingFor(queue)],
      },
      { name: "Running", align: "right", cell: (queue) => filter(queue, { state: "running" }, queue.running) },
      { name: "Succeeded", align: "right", cell: (queue) => filter(queue, { state: "succeeded" }, queue.succeeded) },
      {
        name: "Failed",
        align: "right",
        cell: (queue) =>
          h("span", { class: queue.failed ? "bad-text" : "" }, filter(queue, { state: "failed" }, queue.failed)),
      },
      { name: "Cancelled", align: "right", cell: (queue) => filter(queue, { state: "cancelled" }, queue.cancelled) },
      { name: "Actions", align: "right", cell: (queue) => toggle(context, queue) },
    ],
  });
}

/** What the waiting jobs of a queue wait for. @param {any} queue */
function waitingFor(queue) {
  const views = ["ready", "throttled", "scheduled", "blocked"].filter((view) => queue[view] > 0);
  if (!views.length) return null;
  return h(
    "span",
    { class: "cell-below faint" },
    views.map((view, at) => [
      at > 0 && " · ",
      h(
        "a",
        { key: view, href: address(["jobs"], { queue: queue.queue, view }) },
        `${format.count(queue[view])} ${view}`,
      ),
    ]),
  );
}

/** @param {Context} context @param {any} queue */
function toggle(context, queue) {
  const name = queue.queue;
  const why = context.denied("operate");
  if (queue.paused_at) {
    return button(
      "Resume",
      { icon: "ready", kind: "small primary", why, name: `Resume queue ${name}` },
      () => void context.act({ path: path("queues", name, "resume"), done: `Queue ${name} is resumed` }),
    );
  }
  return button(
    "Pause",
    { icon: "paused", kind: "small", why, name: `Pause queue ${name}` },
    () =>
      void context.act({
        path: path("queues", name, "pause"),
        done: `Queue ${name} is paused`,
        question: {
          title: `Pause queue ${name}?`,
          action: "Pause the queue",
          body: [
            h(
              "p",
              null,
              "No job of this queue starts on any node until the queue is resumed. ",
              `${format.plural(queue.running, "running job continues", "running jobs continue")}. `,
              `${format.plural(queue.waiting, "waiting job stays", "waiting jobs stay")} in the queue, and so do new jobs.`,
            ),
            h("p", { class: "command-line" }, h("code", null, command("queues", "pause", name))),
          ],
        },
      }),
  );
}
