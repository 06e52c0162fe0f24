/** A batch: how many of its jobs are in each state, its jobs, and how to cancel them. */

import { get, optional, path } from "../api.js";
import { cancelBatch } from "../bulk.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { graphPanel } from "../graph.js";
import { t, withElements, word } from "../language.js";
import { badge, button, clock, copyButton, copyCommand, facts, heading, link, nameLinks, panel, when } from "../parts.js";
import { dependencyItems } from "../job/about.js";
import { jobsPanel } from "../job/short_list.js";
import { address } from "../router.js";

/** How many jobs the list has. */
const LISTED = 20;
const MOST_FOLLOWERS = 20;

/** @type {import("../page.js").PageDefinition} */
export const batch = {
  title: ({ params }) => t("Batch {id}", { id: format.shortId(params.id) }),
  load: async ({ route }, signal) => {
    const id = route.params.id;
    const [batch, jobs, graph] = await Promise.all([
      get(path("batches", id), {}, signal),
      get("jobs", { batch: id, count: LISTED }, signal),
      optional(get(path("graphs", id), {}, signal)),
    ]);
    return { batch, jobs: jobs.items, graph };
  },
  view: (context) => {
    const { batch, jobs } = context.data;
    const id = context.route.params.id;
    const done = batch.total - batch.pending;
    return [
      heading(batch.name ?? withElements("Batch {id}", { id: h("span", { class: "mono" }, format.shortId(id)) }), {
        below: batch.name !== null && h("p", { class: "job-id mono" }, id, copyButton(id, t("the id"))),
        crumbs: [[t("Batches"), "batches"]],
        badges: badge(batch.state ?? "running", word(batch.state ?? "pending")),
        actions: [
          copyCommand(command("batches", "show", id)),
          batch.pending > 0 &&
            button(
              t("Cancel the rest"),
              { kind: "danger-quiet", why: context.denied("operate"), name: t("Cancel the pending jobs") },
              () => void cancelBatch(id, () => void context.refresh()),
            ),
        ],
      }),
      panel(
        t("Progress"),
        { hint: t("{done} of {jobs} finished", { done: format.count(done), jobs: format.plural(batch.total, "job") }) },
        progressBar(batch),
        h(
          "p",
          { class: "node-counts" },
          STATES.map((state) =>
            h(
              "a",
              { key: state, href: address(["jobs"], { batch: id, state }) },
              badge(state, `${format.count(batch[state])} ${word(state)}`),
            ),
          ),
          h(
            "a",
            { href: address(["jobs"], { batch: id }) },
            badge("waiting", t("{pending} pending", { pending: format.count(batch.pending) })),
          ),
        ),
      ),
      graphPanel(context.data.graph, id),
      jobsPanel(t("Jobs"), jobs, { href: address(["jobs"], { batch: id }), none: t("No jobs of this batch are kept.") }),
      panel(
        t("About"),
        {},
        facts([
          [t("Id"), h("span", { class: "mono" }, id)],
          [t("Enqueued"), [clock(batch.enqueued_at), " · ", when(batch.enqueued_at)]],
          [t("Finished"), batch.finished_at ? [clock(batch.finished_at), " · ", when(batch.finished_at)] : t("not yet")],
          [t("Duration"), format.duration(format.secondsBetween(batch.enqueued_at, batch.finished_at))],
          [t("Tasks"), nameLinks("tasks", batch.tasks)],
          [t("Jobs"), link(address(["jobs"], { batch: id }), format.plural(batch.total, "job"))],
          ...besideOf(context.data.graph, id),
        ]),
      ),
    ];
  },
};

/** The batch around a batch, and what follows it, as far as its graph has them one by one. @param {any} graph @param {string} id @returns {[string, import("../dom.js").Children][]} */
function besideOf(graph, id) {
  const edges = (graph?.edges ?? []).filter((/** @type {any} */ edge) => edge.source === id);
  const nodes = new Map((graph?.nodes ?? []).map((/** @type {any} */ node) => [node.id, node]));
  const targets = edges
    .map((/** @type {any} */ { target, needs }) => ({ ...nodes.get(target), needs }))
    .filter((/** @type {any} */ node) => !node.counts);
  const outer = targets.filter((/** @type {any} */ { needs }) => needs === "member");
  const followers = targets.filter((/** @type {any} */ { needs }) => needs !== "member").slice(0, MOST_FOLLOWERS);
  return [
    ...outer.map((/** @type {any} */ { id }) => [t("Batch"), link(address(["batches", id]), h("span", { class: "mono" }, format.shortId(id)))]),
    ...(followers.length ? [[t("Followed by"), dependencyItems(followers)]] : []),
  ];
}

const STATES = /** @type {const} */ (["succeeded", "failed", "cancelled", "skipped"]);

/** The finished jobs of a batch by state, and the others, as one bar. @param {any} batch */
export function progressBar(batch) {
  const done = batch.total - batch.pending;
  return h(
    "div",
    {
      class: "stacked-bar",
      role: "img",
      "aria-label": `${t("{done} of {jobs} finished", { done, jobs: batch.total })}: ${STATES.map((state) => `${batch[state]} ${word(state)}`).join(", ")}`,
    },
    STATES.map(
      (state) =>
        batch[state] > 0 &&
        h("span", { key: state, class: `part state-${state}`, style: { "flex-grow": batch[state] } }),
    ),
    batch.pending > 0 && h("span", { key: "pending", class: "part", style: { "flex-grow": batch.pending } }),
  );
}
