/** A picture of the jobs and batches that are connected, in layers: each one is to the right of what it follows. */

import { classes, h } from "./dom.js";
import * as format from "./format.js";
import { icon } from "./icons.js";
import { t, word } from "./language.js";
import { panel } from "./parts.js";
import { address } from "./router.js";

/** @typedef {{id: string, task: string | null, state: string | null, total: number | null, done: number | null}} Node */
/** @typedef {{source: string, target: string, needs: string}} Edge */
/** @typedef {{nodes: Node[], edges: Edge[], is_cut: boolean}} Graph */
/** @typedef {{x: number, y: number}} Point */

/** Pixels. */
const WIDTH = 168;
const HEIGHT = 48;
const GAP_X = 44;
const GAP_Y = 12;
const EDGE = 6;

/** The panel of a graph; nothing if no job in it follows another. @param {Graph | null} graph @param {string} current the id of the page */
export function graphPanel(graph, current) {
  if (!graph || (!graph.is_cut && !graph.edges.some((edge) => edge.needs !== "member"))) return null;
  if (graph.is_cut)
    return panel(
      t("Graph"),
      {},
      h(
        "p",
        { class: "faint" },
        t("More than 200 jobs and batches are connected, so no graph is drawn. About lists what comes directly before and after."),
      ),
    );
  const places = placesOf(graph);
  const names = new Map(graph.nodes.map((node) => [node.id, nameOf(node)]));
  const width = Math.max(...[...places.values()].map(({ x }) => x)) + WIDTH;
  const height = Math.max(...[...places.values()].map(({ y }) => y)) + HEIGHT;
  const jobs = format.plural(graph.nodes.filter((node) => node.task).length, "job");
  return panel(
    t("Graph"),
    { class: "bare", hint: t("{jobs}, each to the right of what it follows", { jobs }) },
    h(
      "div",
      { class: "graph-scroll", tabindex: "0", role: "group", "aria-label": t("Graph of connected jobs") },
      h(
        "div",
        { class: "graph", style: { width: `${width + 2 * EDGE}px`, height: `${height + 2 * EDGE}px` } },
        h(
          "svg",
          { class: "graph-edges", width: width + 2 * EDGE, height: height + 2 * EDGE, "aria-hidden": "true" },
          graph.edges.map((edge) => line(edge, places)),
        ),
        graph.nodes.map((node) => box(node, graph, places, names, node.id === current)),
      ),
    ),
    graph.edges.some((edge) => edge.needs !== "success") &&
      h("p", { class: "graph-key faint" }, t("Dashed: runs after a failure or after any end. Dotted: belongs to the batch.")),
  );
}

/** @param {Node} node */
function nameOf(node) {
  if (node.task !== null) return node.task;
  return node.total === null
    ? t("deleted {id}", { id: format.shortId(node.id) })
    : t("batch of {jobs}", { jobs: format.plural(node.total, "job") });
}

/** What an edge means for its target: "after the success of send_mail". @param {string} needs @param {string} name */
function needText(needs, name) {
  if (needs === "success") return t("after the success of {name}", { name });
  if (needs === "failure") return t("after the failure of {name}", { name });
  return needs === "member" ? t("with {name}", { name }) : t("after any end of {name}", { name });
}

/** @param {Node} node @param {Graph} graph @param {Map<string, Point>} places @param {Map<string, string>} names @param {boolean} isCurrent */
function box(node, graph, places, names, isCurrent) {
  const place = /** @type {Point} */ (places.get(node.id));
  const state = node.state ?? "deleted";
  const shown = node.state === null ? t("deleted") : word(node.state);
  const leaders = graph.edges.filter((edge) => edge.target === node.id);
  const after = leaders.slice(0, 5).map((edge) => needText(edge.needs, names.get(edge.source) ?? ""));
  if (leaders.length > 5) after.push(t("and {count} more", { count: leaders.length - 5 }));
  const label = [nameOf(node), format.shortId(node.id), shown, ...after].join(", ");
  const parts = [
    h("b", { class: "one-line" }, nameOf(node)),
    h(
      "span",
      { class: "graph-state" },
      icon(state === "pending" ? "running" : state === "deleted" ? "gone" : state),
      node.total
        ? `${shown}, ${t("{count} of {total}", { count: format.count(node.done ?? 0), total: format.count(node.total) })}`
        : shown,
    ),
  ];
  const props = {
    key: node.id,
    class: classes("graph-node", `state-${state === "pending" ? "running" : state}`, isCurrent && "is-current"),
    style: { left: `${place.x + EDGE}px`, top: `${place.y + EDGE}px`, width: `${WIDTH}px`, height: `${HEIGHT}px` },
    title: names.get(node.id),
    "aria-label": label,
  };
  if (node.state === null) return h("span", { ...props, role: "img" }, parts);
  const href = address([node.task === null ? "batches" : "jobs", node.id]);
  return h("a", { ...props, href, "aria-current": isCurrent ? "page" : null }, parts);
}

/** @param {Edge} edge @param {Map<string, Point>} places */
function line(edge, places) {
  const from = /** @type {Point} */ (places.get(edge.source));
  const to = /** @type {Point} */ (places.get(edge.target));
  const [x1, y1] = [from.x + WIDTH + EDGE, from.y + HEIGHT / 2 + EDGE];
  const [x2, y2] = [to.x + EDGE, to.y + HEIGHT / 2 + EDGE];
  const middle = Math.max((x2 - x1) / 2, GAP_X / 2);
  return h("path", {
    key: `${edge.source} ${edge.target}`,
    class: `graph-edge needs-${edge.needs}`,
    d: `M${x1} ${y1}C${x1 + middle} ${y1} ${x2 - middle} ${y2} ${x2} ${y2}`,
  });
}

/**
 * The place of each node: its layer is the longest path to it, its row is near those of its leaders.
 *
 * @param {Graph} graph @returns {Map<string, Point>}
 */
export function placesOf({ nodes, edges }) {
  /** @type {Map<string, string[]>} */
  const leaders = new Map(nodes.map(({ id }) => [id, []]));
  /** @type {Map<string, string[]>} */
  const followers = new Map(nodes.map(({ id }) => [id, []]));
  for (const { source, target } of edges) {
    leaders.get(target)?.push(source);
    followers.get(source)?.push(target);
  }
  /** @type {Map<string, number>} */
  const layers = new Map();
  const left = new Map([...leaders].map(([id, before]) => [id, before.length]));
  const ready = [...left].filter(([, count]) => !count).map(([id]) => id);
  for (let id = ready.shift(); id !== undefined; id = ready.shift()) {
    layers.set(id, Math.max(-1, ...(leaders.get(id) ?? []).map((each) => layers.get(each) ?? 0)) + 1);
    for (const next of followers.get(id) ?? []) {
      const count = (left.get(next) ?? 0) - 1;
      left.set(next, count);
      if (!count) ready.push(next);
    }
  }
  /** @type {string[][]} */
  const rows = [];
  for (const { id } of nodes) (rows[layers.get(id) ?? 0] ??= []).push(id);
  /** @type {Map<string, Point>} */
  const places = new Map();
  const tallest = Math.max(...rows.map((row) => row.length));
  rows.forEach((row, layer) => {
    const mean = new Map(
      row.map((id) => {
        const above = (leaders.get(id) ?? []).map((each) => places.get(each)?.y ?? 0);
        return [id, above.length ? above.reduce((sum, y) => sum + y, 0) / above.length : 0];
      }),
    );
    const ordered = [...row].sort((a, b) => (mean.get(a) ?? 0) - (mean.get(b) ?? 0));
    const top = ((tallest - row.length) * (HEIGHT + GAP_Y)) / 2;
    ordered.forEach((id, index) => {
      places.set(id, { x: layer * (WIDTH + GAP_X), y: top + index * (HEIGHT + GAP_Y) });
    });
  });
  return places;
}
