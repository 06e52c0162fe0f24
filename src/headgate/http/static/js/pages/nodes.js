/** Nodes: the engine processes, whether they live, and how full they are. */

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
          h("b", null, "Nodes of different releases run together: "),
          versions.join(", "),
          ". That is as it should be during a rollout, and only then.",
        ),
      panel(
        "All nodes",
        { class: "bare" },
        table({
          label: "Nodes",
          rows: data.items,
          key: (node) => node.id,
          tone: (node) => (node.state === "alive" ? "" : "dim"),
          empty: empty("No node is running", "Jobs are kept, and wait. Start a node where your code is:", START_WORKER),
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
                  h("span", { class: "cell-below warn-text" }, `${node.lingering.length} linger`),
              ],
            },
            {
              name: "Queues",
              cell: (node) =>
                Object.entries(node.queues).map(([queue, many]) =>
                  h("span", { class: "chip", key: queue }, queue, h("b", { class: "num" }, String(many))),
                ),
            },
            {
              name: "Version",
              cell: (node) => h("span", { class: versions.length > 1 ? "warn-text num" : "num" }, node.version),
            },
            { name: "Started", align: "right", cell: (node) => when(node.started_at) },
            {
              name: "Runs",
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
        "A node is silent when it was not heard for 30 s, and gone when its process has ended; another node takes its jobs.",
      ),
    ];
  },
};

/** @param {any} node */
function slots(node) {
  return node.slots ?? Object.values(node.queues).reduce((/** @type {number} */ sum, many) => sum + Number(many), 0);
}
