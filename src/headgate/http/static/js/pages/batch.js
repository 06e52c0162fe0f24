/** A batch: how many of its jobs are in each state, its jobs, and how to cancel them. */

import { get, path } from "../api.js";
import { changeMatching } from "../bulk.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { badge, button, clock, copyCommand, facts, heading, link, panel, when } from "../parts.js";
import { jobsPanel } from "../job/short_list.js";
import { address } from "../router.js";

/** How many jobs the list has. */
const LISTED = 20;

/** @type {import("../page.js").PageDefinition} */
export const batch = {
  title: ({ params }) => `Batch ${format.shortId(params.id)}`,
  load: async ({ route }, signal) => {
    const id = route.params.id;
    const [batch, jobs] = await Promise.all([
      get(path("batches", id), {}, signal),
      get("jobs", { batch: id, count: LISTED }, signal),
    ]);
    return { batch, jobs: jobs.items };
  },
  view: (context) => {
    const { batch, jobs } = context.data;
    const id = context.route.params.id;
    const done = batch.total - batch.pending;
    return [
      heading(["Batch ", h("span", { class: "mono" }, format.shortId(id))], {
        crumbs: [["Batches", "batches"]],
        badges: badge(batch.state ?? "running", batch.state ?? "pending"),
        actions: [
          copyCommand(command("batches", "show", id)),
          batch.pending > 0 &&
            button(
              "Cancel the rest",
              { kind: "danger-quiet", why: context.denied("operate"), name: "Cancel the pending jobs" },
              () => void changeMatching("cancel", { batch: id }, () => void context.refresh()),
            ),
        ],
      }),
      panel(
        "Progress",
        { hint: `${format.count(done)} of ${format.plural(batch.total, "job")} finished` },
        progressBar(batch),
        h(
          "p",
          { class: "node-counts" },
          STATES.map((state) =>
            h(
              "a",
              { key: state, href: address(["jobs"], { batch: id, state }) },
              badge(state, `${format.count(batch[state])} ${state}`),
            ),
          ),
          h(
            "a",
            { href: address(["jobs"], { batch: id }) },
            badge("waiting", `${format.count(batch.pending)} pending`),
          ),
        ),
      ),
      jobsPanel("Jobs", jobs, { href: address(["jobs"], { batch: id }), none: "No jobs of this batch are kept." }),
      panel(
        "About",
        {},
        facts([
          ["Id", h("span", { class: "mono" }, id)],
          ["Enqueued", [clock(batch.enqueued_at), " · ", when(batch.enqueued_at)]],
          ["Finished", batch.finished_at ? [clock(batch.finished_at), " · ", when(batch.finished_at)] : "not yet"],
          [
            "Took",
            batch.finished_at
              ? format.duration((Date.parse(batch.finished_at) - Date.parse(batch.enqueued_at)) / 1000)
              : "–",
          ],
          ["Jobs", link(address(["jobs"], { batch: id }), format.plural(batch.total, "job"))],
        ]),
      ),
    ];
  },
};

const STATES = /** @type {const} */ (["succeeded", "failed", "cancelled"]);

/** The finished jobs of a batch by state, and the others, as one bar. @param {any} batch */
export function progressBar(batch) {
  const done = batch.total - batch.pending;
  return h(
    "div",
    {
      class: "stacked-bar",
      role: "img",
      "aria-label": `${done} of ${batch.total} finished: ${STATES.map((state) => `${batch[state]} ${state}`).join(", ")}`,
    },
    STATES.map(
      (state) =>
        batch[state] > 0 &&
        h("span", { key: state, class: `part state-${state}`, style: { "flex-grow": batch[state] } }),
    ),
    batch.pending > 0 && h("span", { key: "pending", class: "part", style: { "flex-grow": batch.pending } }),
  );
}
