/** Nodes: the worker processes, their state, how many of their slots are in use, and steering them. */

import { get, path } from "../api.js";
import { command } from "../commands.js";
import { ask } from "../dialogs.js";
import { h } from "../dom.js";
import { input, select } from "../fields.js";
import * as format from "../format.js";
import { badge, button, copyCommand, empty, gauge, heading, link, notice, panel, START_WORKER, when } from "../parts.js";
import { address } from "../router.js";
import { table } from "../table.js";

/** @typedef {import("../page.js").Context} Context */

/** @type {import("../page.js").PageDefinition} */
export const nodes = {
  title: () => "Nodes",
  every: 5_000,
  load: async (_, signal) => ({ items: (await get("nodes", {}, signal)).items }),
  view: (context) => {
    const { data } = context;
    const versions = [...new Set(data.items.map((/** @type {any} */ node) => node.version))];
    return [
      heading("Nodes", { actions: copyCommand(command("nodes", "list")) }),
      versions.length > 1 &&
        notice(
          "warn",
          h("b", null, "Nodes run different versions of Headgate: "),
          versions.join(", "),
          ". This is normal during a rollout only.",
        ),
      panel(
        "All nodes",
        { class: "bare" },
        table({
          label: "Nodes",
          rows: data.items,
          key: (node) => node.id,
          tone: (node) => (node.state === "alive" ? "" : "dim"),
          empty: empty("No nodes", "Jobs are stored and wait. Start a worker where your code is:", START_WORKER),
          columns: [
            {
              name: "Node",
              cell: (node) => [
                h("b", null, node.name),
                node.labels.map((/** @type {string} */ label) => h("span", { class: "chip", key: label }, label)),
                h("span", { class: "cell-below faint mono" }, node.id),
              ],
            },
            { name: "State", cell: nodeState },
            {
              name: "Heartbeat",
              align: "right",
              cell: (node) =>
                h(
                  "span",
                  { class: node.state === "silent" ? "warn-text" : "" },
                  `${format.duration(node.heartbeat_age)} ago`,
                ),
            },
            {
              name: "Slots",
              cell: (node) => [
                gauge({
                  used: node.running,
                  allowed: slots(node),
                  label: `Slots of ${node.name} in use`,
                  state: "fine",
                }),
                node.lingering.length > 0 &&
                  h(
                    "span",
                    { class: "cell-below warn-text", title: "Attempts that were told to stop and still use a slot" },
                    `${node.lingering.length} lingering`),
              ],
            },
            {
              name: "Queues",
              cell: (node) =>
                Object.entries(node.queues).map(([queue, count]) =>
                  h("span", { class: "chip", key: queue }, queue, h("b", { class: "num" }, String(count))),
                ),
            },
            {
              name: "Version",
              cell: (node) => h("span", { class: versions.length > 1 ? "warn-text num" : "num" }, node.version),
            },
            { name: "Started", align: "right", cell: (node) => when(node.started_at) },
            {
              name: "Running",
              align: "right",
              cell: (node) =>
                link(address(["jobs"], { node: node.id, state: "running" }), format.plural(node.running, "job")),
            },
            {
              name: "Actions",
              align: "right",
              cell: (node) => node.state !== "gone" && h("span", { class: "row-actions" }, nodeActions(context, node)),
            },
          ],
        }),
      ),
      h(
        "p",
        { class: "hint" },
        "A node is silent after 30 s without a heartbeat, and gone when its process has ended. Other nodes then take over its jobs.",
      ),
    ];
  },
};

/** @param {any} node */
function slots(node) {
  return node.slots ?? Object.values(node.queues).reduce((/** @type {number} */ sum, count) => sum + Number(count), 0);
}

/** @param {any} node */
function nodeState(node) {
  if (node.state === "alive" && node.is_stopping) return badge("silent", "stopping");
  if (node.state === "alive" && node.is_quiet) return badge("paused", "quiet");
  return badge(node.state);
}

/** @param {Context} context @param {any} node */
function nodeActions(context, node) {
  const { id, name } = node;
  const why = context.denied("operate") ?? (node.is_stopping ? "This node is stopping" : null);
  return [
    node.is_quiet
      ? button(
          "Resume",
          { icon: "ready", kind: "small primary", why, name: `Resume node ${name}` },
          () => void context.act({ path: path("nodes", id, "resume"), done: `Node ${name} is resumed` }),
        )
      : button(
          "Quiet",
          { icon: "paused", kind: "small", why, name: `Quiet node ${name}` },
          () =>
            void context.act({
              path: path("nodes", id, "quiet"),
              done: `Node ${name} is quiet`,
              question: {
                title: `Quiet node ${name}?`,
                action: "Quiet the node",
                body: [
                  h(
                    "p",
                    null,
                    "The node claims no more jobs until it is resumed. ",
                    `${format.plural(node.running, "running job continues", "running jobs continue")}.`,
                  ),
                  h("p", { class: "command-line" }, h("code", null, command("nodes", "quiet", id))),
                ],
              },
            }),
        ),
    button(
      "Slots",
      { icon: "queues", kind: "small", why, name: `Set the slots of node ${name}` },
      () => void setSlots(context, node),
    ),
    button(
      "Stop",
      { icon: "close", kind: "small", why, name: `Stop node ${name}` },
      () =>
        void context.act({
          path: path("nodes", id, "stop"),
          done: `Node ${name} is stopping`,
          question: {
            title: `Stop node ${name}?`,
            action: "Stop the node",
            danger: true,
            body: [
              h(
                "p",
                null,
                "The node claims no more jobs and ends. ",
                `${format.plural(node.running, "running job", "running jobs")} may continue for its grace; what has not ended then waits again. A service manager may start the process again.`,
              ),
              h("p", { class: "command-line" }, h("code", null, command("nodes", "stop", id))),
            ],
          },
        }),
    ),
  ];
}

/** Ask for a number of slots, of one queue or of all, and set it. @param {Context} context @param {any} node */
async function setSlots(context, node) {
  const { id, name } = node;
  const queues = Object.keys(node.queues);
  const form = { slots: String(slots(node)), queue: "" };
  const isReady = () => /^\d+$/.test(form.slots);
  const isConfirmed = await ask({
    title: `Slots of node ${name}`,
    action: "Set the slots",
    isReady,
    body: h(
      "p",
      null,
      "How many jobs run at once on this node, until it ends. More are used immediately. With fewer, running jobs continue. With 0 it claims none.",
    ),
    fields: (update) =>
      h(
        "div",
        { class: "dialog-fields" },
        input(
          "Slots",
          form.slots,
          "20",
          (value) => {
            form.slots = value;
            update();
          },
          { inputmode: "numeric", autofocus: true },
        ),
        queues.length > 1 &&
          select("For", form.queue, [["", "all queues together"], ...queues.map(choice)], (value) => {
            form.queue = value;
            update();
          }),
        isReady() &&
          h(
            "p",
            { class: "command-line" },
            h("code", null, command("nodes", "slots", id, form.queue ? `${form.queue}:${form.slots}` : form.slots)),
          ),
      ),
  });
  if (!isConfirmed) return;
  await context.act({
    path: path("nodes", id, "slots"),
    body: { slots: Number(form.slots), ...(form.queue ? { queue: form.queue } : {}) },
    done: `Node ${name} has ${form.slots} slots${form.queue ? ` for queue ${form.queue}` : ""}`,
  });
}

/** @param {string} queue @returns {[string, string]} */
function choice(queue) {
  return [queue, `queue ${queue}`];
}
