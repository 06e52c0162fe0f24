/** A picture of the jobs and batches that are connected, in layers: each one is to the right of what it follows. */

import { classes, h } from "./dom.js";
import * as format from "./format.js";
import { icon } from "./icons.js";
import { t, word } from "./language.js";
import { panel } from "./parts.js";
import { address } from "./router.js";

/**
 * A group has `counts`, how many of its jobs are in each state.
 *
 * @typedef {{
 *   id: string, task: string | null, state: string | null, total: number | null, done: number | null,
 *   counts: Record<string, number> | null, depth: number | null, is_at_least: boolean, name: string | null,
 * }} Node
 */
/** @typedef {{source: string, target: string, needs: string}} Edge */
/** @typedef {{nodes: Node[], edges: Edge[], is_folded: boolean, critical: string[]}} Graph */
/** @typedef {{x: number, y: number}} Point */

/** Pixels. */
const WIDTH = 196;
const HEIGHT = 54;
const GAP_X = 44;
const GAP_Y = 12;
const EDGE = 6;

/** The order of states in the bar and the text of a group. */
const STATES = ["failed", "running", "succeeded", "cancelled", "skipped", "pending", "ready", "throttled", "waiting", "scheduled", "blocked", "deleted"];
const FINAL = ["succeeded", "failed", "cancelled", "skipped"];

/** How far the graph of each page was scrolled. @type {Map<string, {left: number, top: number}>} */
const scrolled = new Map();

/** The panel of a graph; nothing if no job in it follows another. @param {Graph | null} graph @param {string} current the id of the page */
export function graphPanel(graph, current) {
  if (!graph) return null;
  const groups = graph.nodes.filter((node) => node.counts);
  if (groups.length < 2 && !graph.edges.some((edge) => edge.needs !== "member")) return null;
  const places = placesOf(graph);
  const names = new Map(graph.nodes.map((node) => [node.id, nameOf(node)]));
  // A graph that is one chain has no other path.
  const critical = graph.critical.length < graph.nodes.length ? graph.critical : [];
  const width = Math.max(...[...places.values()].map(({ x }) => x)) + WIDTH;
  const height = Math.max(...[...places.values()].map(({ y }) => y)) + HEIGHT;
  const count = graph.nodes.reduce((sum, node) => sum + (node.task === null ? 0 : node.counts ? (node.total ?? 0) : 1), 0);
  const jobs = groups.some((node) => node.is_at_least) ? t("at least {jobs}", { jobs: format.plural(count, "job") }) : format.plural(count, "job");
  const keep = (/** @type {Event} */ event) => {
    const area = /** @type {Element} */ (event.currentTarget);
    // The event of a scroll may also come after the page was left: then its graph is nowhere, and scrolled to 0.
    if (area.isConnected) scrolled.set(current, { left: area.scrollLeft, top: area.scrollTop });
  };
  requestAnimationFrame(() => restore(current));
  return panel(
    t("Graph"),
    {
      class: "bare",
      hint: graph.is_folded
        ? t("{jobs}, grouped by task and by how many steps come before", { jobs })
        : t("{jobs}, each to the right of what it follows", { jobs }),
    },
    h(
      "div",
      {
        class: "graph-scroll",
        tabindex: "0",
        role: "group",
        "aria-label": t("Graph of connected jobs"),
        onscroll: keep,
        // A click may come before the event of a scroll.
        onclick: keep,
      },
      h(
        "div",
        { class: "graph", style: { width: `${width + 2 * EDGE}px`, height: `${height + 2 * EDGE}px` } },
        h(
          "svg",
          { class: "graph-edges", width: width + 2 * EDGE, height: height + 2 * EDGE, "aria-hidden": "true" },
          graph.edges.map((edge) => line(edge, places, critical)),
        ),
        graph.nodes.map((node) => box(node, graph, places, names, node.id === current, critical.includes(node.id))),
      ),
    ),
    h(
      "p",
      { class: "graph-key faint" },
      graph.edges.some((edge) => edge.needs !== "success") &&
        t("Dashed: runs after a failure or after any end. Dotted: belongs to the batch."),
      " ",
      critical.length > 0 && t("Bold: the critical path, which decides when the last job ends."),
    ),
  );
}

/** Scroll a graph that has just been drawn to where it was, or else to the box of its page. @param {string} current */
function restore(current) {
  const area = /** @type {HTMLElement | null} */ (document.querySelector(".graph-scroll"));
  if (!area || area.dataset.page === current) return;
  area.dataset.page = current;
  const box = /** @type {HTMLElement | null} */ (area.querySelector(".is-current"));
  const { left, top } = scrolled.get(current) ?? {
    left: (box?.offsetLeft ?? 0) + WIDTH + GAP_X - area.clientWidth,
    top: (box?.offsetTop ?? 0) + HEIGHT + GAP_X - area.clientHeight,
  };
  area.scrollTo(left, top);
}

/** @param {Node} node */
function nameOf(node) {
  if (node.counts) {
    const number = `${format.count(node.total ?? 0)}${node.is_at_least ? "+" : ""}`;
    return `${node.task ?? (node.counts.deleted ? t("deleted") : t("batch"))} × ${number}`;
  }
  if (node.task !== null || node.name !== null) return node.task ?? node.name ?? "";
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

/** Why a job was skipped, as far as what it follows shows. @param {Edge[]} leaders @param {Graph} graph @param {Map<string, string>} names */
function skipReason(leaders, graph, names) {
  for (const { source, needs } of leaders) {
    const state = graph.nodes.find((node) => node.id === source)?.state;
    const name = names.get(source) ?? "";
    if (needs === "failure" && state === "succeeded") return t("not needed: {name} succeeded", { name });
    if (needs !== "member" && state === "skipped") return t("not needed: {name} was skipped", { name });
  }
  return null;
}

/** @param {string} state */
function stateWord(state) {
  return state === "deleted" ? t("deleted") : word(state);
}

/** @param {Node} node @param {Graph} graph @param {Map<string, Point>} places @param {Map<string, string>} names @param {boolean} isCurrent @param {boolean} isCritical */
function box(node, graph, places, names, isCurrent, isCritical) {
  const place = /** @type {Point} */ (places.get(node.id));
  const state = node.state ?? "deleted";
  const leaders = graph.edges.filter((edge) => edge.target === node.id);
  const reason = state === "skipped" && !node.counts ? skipReason(leaders, graph, names) : null;
  const shown = stateText(node, state, reason);
  const after = leaders.slice(0, 5).map((edge) => needText(edge.needs, names.get(edge.source) ?? ""));
  if (leaders.length > 5) after.push(t("and {count} more", { count: leaders.length - 5 }));
  const tone = state === "pending" ? "running" : state;
  const name = names.get(node.id) ?? "";
  const parts = [
    h("b", { class: "one-line" }, name),
    node.counts && groupBar(node.counts),
    h(
      "span",
      { class: "graph-state" },
      icon(tone === "deleted" ? "gone" : tone),
      h(
        "span",
        { class: "one-line" },
        node.counts || !node.total
          ? shown
          : `${shown}, ${t("{count} of {total}", { count: format.count(node.done ?? 0), total: format.count(node.total) })}`,
      ),
    ),
  ];
  const props = {
    key: node.id,
    class: classes("graph-node", `state-${tone}`, isCurrent && "is-current", isCritical && "is-critical", node.counts && "is-group"),
    style: { left: `${place.x + EDGE}px`, top: `${place.y + EDGE}px`, width: `${WIDTH}px`, height: `${HEIGHT}px` },
    title: node.counts || reason ? `${name}: ${shown}` : name,
    "aria-label": [
      name,
      !node.counts && format.shortId(node.id),
      node.is_at_least && t("there may be more"),
      shown,
      isCritical && t("on the critical path"),
      ...after,
    ]
      .filter(Boolean)
      .join(", "),
  };
  const href = linkOf(node, graph);
  return href === null
    ? h("span", { ...props, role: "img" }, parts)
    : h("a", { ...props, href, "aria-current": isCurrent ? "page" : null }, parts);
}

/** The page of a job or a batch, the list of a group's jobs; null if there is none. @param {Node} node @param {Graph} graph */
function linkOf(node, graph) {
  if (!node.counts) return node.state === null ? null : address([node.task === null ? "batches" : "jobs", node.id]);
  const batch = graph.edges.find((edge) => edge.source === node.id && edge.needs === "member")?.target;
  const isOne = graph.nodes.some((each) => each.id === batch && !each.counts);
  return node.task !== null && batch && isOne ? address(["jobs"], { batch, task: node.task }) : null;
}

/** @param {Node} node @param {string} state @param {string | null} reason */
function stateText(node, state, reason) {
  const { counts } = node;
  if (!counts) return reason ? `${stateWord(state)}, ${reason}` : stateWord(state);
  return STATES.filter((each) => counts[each])
    .map((each) => `${format.count(counts[each])} ${stateWord(each)}`)
    .join(", ");
}

/** @param {Record<string, number>} counts */
function groupBar(counts) {
  return h(
    "span",
    { class: "stacked-bar" },
    STATES.filter((state) => counts[state]).map((state) =>
      h("span", {
        key: state,
        class: classes("part", (state === "running" || FINAL.includes(state)) && `state-${state}`),
        style: { "flex-grow": counts[state] },
      }),
    ),
  );
}

/** @param {Edge} edge @param {Map<string, Point>} places @param {string[]} critical */
function line(edge, places, critical) {
  const at = critical.indexOf(edge.source);
  const from = /** @type {Point} */ (places.get(edge.source));
  const to = /** @type {Point} */ (places.get(edge.target));
  const [x1, y1] = [from.x + WIDTH + EDGE, from.y + HEIGHT / 2 + EDGE];
  const [x2, y2] = [to.x + EDGE, to.y + HEIGHT / 2 + EDGE];
  const middle = Math.max((x2 - x1) / 2, GAP_X / 2);
  return h("path", {
    key: `${edge.source} ${edge.target} ${edge.needs}`,
    class: classes("graph-edge", `needs-${edge.needs}`, at >= 0 && critical[at + 1] === edge.target && "is-critical"),
    d: `M${x1} ${y1}C${x1 + middle} ${y1} ${x2 - middle} ${y2} ${x2} ${y2}`,
  });
}

/**
 * The place of each node: its layer is the longest path to it, or its `depth`; its row is near those of its leaders.
 *
 * @param {Graph} graph @returns {Map<string, Point>}
 */
function placesOf({ nodes, edges }) {
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
  for (const { id, depth } of nodes) (rows[depth ?? layers.get(id) ?? 0] ??= []).push(id);
  /** @type {Map<string, Point>} */
  const places = new Map();
  const kept = rows.filter(Boolean);
  const tallest = Math.max(...kept.map((row) => row.length));
  kept.forEach((row, layer) => {
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
