/** Nodes: the worker processes, their state, how many of their slots are in use, and steering them. */

import { get, path } from "../api.js";
import { command } from "../commands.js";
import { ask } from "../dialogs.js";
import { h } from "../dom.js";
import { input, select, setter } from "../fields.js";
import * as format from "../format.js";
import { t } from "../language.js";
import { badge, breakable, button, commandLine, copyCommand, effect, empty, gauge, heading, link, notice, panel, startWorker, when } from "../parts.js";
import { address } from "../router.js";
import { declared, table } from "../table.js";

/** @typedef {import("../page.js").Context} Context */

/** @type {import("../page.js").PageDefinition} */
export const nodes = {
  title: () => t("Nodes"),
  every: 5_000,
  load: async (_, signal) => ({ items: (await get("nodes", {}, signal)).items }),
  view: (context) => {
    const { data } = context;
    const live = data.items.filter((/** @type {any} */ node) => !node.lost_at);
    const none = empty(t("No nodes"), t("Jobs are stored and wait. Start a worker in your project:"), startWorker());
    const versions = [...new Set(live.map((/** @type {any} */ node) => node.version))];
    return [
      heading(t("Nodes"), { actions: copyCommand(command("nodes", "list")) }),
      versions.length > 1 &&
        notice(
          "warn",
          h("b", null, t("Nodes run different versions of Headgate:")),
          ` ${versions.join(", ")}. `,
          t("This is normal during a rollout only."),
        ),
      panel(
        t("All nodes"),
        { class: "bare" },
        !live.length && data.items.length > 0 && none,
        table({
          label: t("Nodes"),
          rows: data.items,
          key: (node) => node.id,
          tone: (node) => (node.state === "alive" ? "" : "dim"),
          empty: none,
          columns: [
            ...declared("nodes", data.items, {
              name: {
                extra: "node-cell",
                cell: (node) => [
                  h("b", null, breakable(node.name)),
                  " ",
                  node.labels.map((/** @type {string} */ label) => chip(label)),
                  h("span", { class: "cell-below faint mono" }, node.id),
                ],
              },
              state: nodeState,
              heartbeat_age: {
                extra: "node-age",
                cell: (node) =>
                  h(
                    "span",
                    { class: node.state === "silent" ? "warn-text" : "" },
                    t("{time} ago", { time: format.duration(node.heartbeat_age) }),
                  ),
              },
              running: (node) =>
                node.lost_at
                  ? t("{jobs} returned", { jobs: format.plural(node.returned, "job") })
                  : link(address(["jobs"], { node: node.id, state: "running" }), format.plural(node.running, "job")),
              slots: { extra: "node-slots", cell: (node) => !node.lost_at && slotsInUse(node) },
              queues: (node) =>
                Object.entries(node.queues).map(([queue, count]) => chip(queue, h("b", { class: "num" }, String(count)))),
              version: (node) => h("span", { class: versions.length > 1 ? "warn-text num" : "num" }, node.version),
              started_at: { extra: "node-age" },
            }),
            {
              name: t("Actions"),
              align: "right",
              extra: "node-actions",
              cell: (node) => node.state !== "gone" && h("span", { class: "row-actions" }, nodeActions(context, node)),
            },
          ],
        }),
      ),
      h(
        "p",
        { class: "hint" },
        t("A node is silent after 30 s without a heartbeat, and gone when its process has ended. Other nodes then take over its jobs."),
        " ",
        t("The last 20 nodes that were declared dead stay in this list for a day."),
      ),
    ];
  },
};

/** A name in a frame. @param {string} name @param {import("../dom.js").Children} [more] */
function chip(name, more) {
  return h("span", { class: "chip", key: name, title: name }, h("span", { class: "one-line" }, name), more);
}

/** @param {any} node */
function slotsInUse(node) {
  return [
    gauge({
      used: node.running,
      allowed: node.slots,
      label: t("Slots of {name} in use", { name: node.name }),
      state: "fine",
    }),
    node.lingering.length > 0 &&
      h(
        "span",
        { class: "cell-below warn-text", title: t("Attempts that were asked to stop and still use a slot") },
        t("{count} lingering", { count: node.lingering.length }),
      ),
  ];
}

/** @param {any} node */
function nodeState(node) {
  if (node.lost_at)
    return [badge(node.state), h("span", { class: "cell-below faint", title: t("Declared dead") }, when(node.lost_at))];
  if (node.state === "alive" && node.is_stopping) return badge("silent", t("stopping"));
  if (node.state === "alive" && node.is_quiet) return badge("paused", t("quiet"));
  return badge(node.state);
}

/** @param {Context} context @param {any} node */
function nodeActions(context, node) {
  const { id, name } = node;
  const why = context.denied("operate") ?? (node.is_stopping ? t("This node is stopping") : null);
  const quiet = { path: path("nodes", id, "quiet"), done: t("Node {name} is quiet", { name }) };
  const resume = { path: path("nodes", id, "resume"), done: t("Node {name} is resumed", { name }) };
  return [
    node.is_quiet
      ? button(
          t("Resume"),
          { icon: "ready", kind: "small primary", why, name: t("Resume node {name}", { name }) },
          () => void context.act({ ...resume, undo: quiet }),
        )
      : button(
          t("Quiet"),
          { icon: "paused", kind: "small", why, name: t("Quiet node {name}", { name }) },
          () =>
            void context.act({
              ...quiet,
              undo: resume,
              question: {
                title: t("Quiet node {name}?", { name }),
                action: t("Quiet the node"),
                body: effect(
                  [
                    t("The node claims no more jobs until it is resumed."),
                    ` ${format.plural(node.running, "running job continues", "running jobs continue")}.`,
                  ],
                  command("nodes", "quiet", id),
                ),
              },
            }),
        ),
    button(
      t("Slots"),
      { icon: "queues", kind: "small", why, name: t("Set the slots of node {name}", { name }) },
      () => void setSlots(context, node),
    ),
    button(
      t("Rename"),
      { icon: "nodes", kind: "small", why, name: t("Rename node {name}", { name }) },
      () => void rename(context, node),
    ),
    button(
      t("Stop"),
      { icon: "close", kind: "small", why, name: t("Stop node {name}", { name }) },
      () =>
        void context.act({
          path: path("nodes", id, "stop"),
          done: t("Node {name} is stopping", { name }),
          question: {
            title: t("Stop node {name}?", { name }),
            action: t("Stop the node"),
            danger: true,
            body: effect(
              t(
                "The node claims no more jobs and ends. {jobs} may continue during its grace period; jobs that have not ended by then wait again. A service manager may restart the process.",
                { jobs: format.plural(node.running, "running job") },
              ),
              command("nodes", "stop", id),
            ),
          },
        }),
    ),
  ];
}

/** Ask for a number of slots, of one queue or of all, and set it. @param {Context} context @param {any} node */
async function setSlots(context, node) {
  const { id, name } = node;
  const queues = Object.keys(node.queues);
  const form = { slots: String(node.slots), queue: "" };
  const isReady = () => /^\d+$/.test(form.slots);
  const isConfirmed = await ask({
    title: t("Slots of node {name}", { name }),
    action: t("Set the slots"),
    isReady,
    body: h(
      "p",
      null,
      t("How many jobs run at once on this node, until it ends. Added slots are used immediately. With fewer slots, running jobs continue. With 0, the node claims no jobs."),
    ),
    fields: (update) => [
      input(t("Slots"), form.slots, "20", setter(form, update)("slots"), { inputmode: "numeric", autofocus: true }),
      queues.length > 1 &&
        select(t("For"), form.queue, [["", t("all queues together")], ...queues.map(choice)], setter(form, update)("queue")),
      isReady() &&
        commandLine(command("nodes", "slots", id, form.queue ? `${form.queue}:${form.slots}` : form.slots)),
    ],
  });
  if (!isConfirmed) return;
  await context.act({
    path: path("nodes", id, "slots"),
    body: { slots: Number(form.slots), ...(form.queue ? { queue: form.queue } : {}) },
    done: form.queue
      ? t("Node {name} has {slots} slots for queue {queue}", { name, slots: form.slots, queue: form.queue })
      : t("Node {name} has {slots} slots", { name, slots: form.slots }),
  });
}

/** Ask for another name, and set it. @param {Context} context @param {any} node */
async function rename(context, node) {
  const { id, name } = node;
  const form = { name };
  const isReady = () => /^\S{1,200}$/.test(form.name) && form.name !== name;
  const isConfirmed = await ask({
    title: t("Rename node {name}", { name }),
    action: t("Rename the node"),
    isReady,
    body: h("p", null, t("The name stays until the process ends. It has no spaces.")),
    fields: (update) => [
      input(t("Name"), form.name, "mail-1", setter(form, update)("name"), { autofocus: true }),
      isReady() && commandLine(command("nodes", "rename", id, form.name)),
    ],
  });
  if (!isConfirmed) return;
  await context.act({
    path: path("nodes", id, "rename"),
    body: { name: form.name },
    done: t("Node {name} is renamed to {new_name}", { name, new_name: form.name }),
  });
}

/** @param {string} queue @returns {[string, string]} */
function choice(queue) {
  return [queue, t("queue {queue}", { queue })];
}
