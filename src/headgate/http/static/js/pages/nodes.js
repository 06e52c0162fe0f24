/** Nodes: the worker processes, their state, and how many of their slots are in use. */

import { get } from "../api.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { badge, copyCommand, empty, gauge, heading, link, notice, panel, START_WORKER, when } from "../parts.js";
import { address } from "../router.js";
import { table } from "../table.js";

/** @type {import("../page.js").PageDefinition} */
export const nodes = {
  title: () => "Nodes",
  every: 5_000,
  load: async (_, signal) => ({ items: (await get("nodes", {}, signal)).items }),
  view: ({ data }) => {
    const versions = [...new Set(data.items.map((/** @type {any} */ node) => node.version))];
    return [
      heading("Nodes", { actions: copyCommand(command("nodes")) }),
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
              cell: (node) => [h("b", null, node.name), h("span", { class: "cell-below faint mono" }, node.id)],
            },
            { name: "State", cell: (node) => badge(node.state) },
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
