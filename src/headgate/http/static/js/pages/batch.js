/** A batch: how many of its jobs are in each state. */

import { get, path } from "../api.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { badge, clock, copyCommand, facts, heading, link, panel, when } from "../parts.js";
import { address } from "../router.js";

/** @type {import("../page.js").PageDefinition} */
export const batch = {
  title: ({ params }) => `Batch ${format.shortId(params.id)}`,
  load: async ({ route }, signal) => ({ batch: await get(path("batches", route.params.id), {}, signal) }),
  view: ({ data: { batch }, route }) => {
    const id = route.params.id;
    const done = batch.total - batch.pending;
    const states = /** @type {const} */ (["succeeded", "failed", "cancelled"]);
    return [
      heading(["Batch ", h("span", { class: "mono" }, format.shortId(id))], {
        crumbs: [["Jobs", "jobs"]],
        badges: badge(batch.state ?? "running", batch.state ?? "pending"),
        actions: copyCommand(command("jobs", "list", "--batch", id)),
      }),
      panel(
        "Progress",
        { hint: `${format.count(done)} of ${format.plural(batch.total, "job")} finished` },
        h(
          "div",
          {
            class: "stacked-bar",
            role: "img",
            "aria-label": `${done} of ${batch.total} finished: ${states.map((state) => `${batch[state]} ${state}`).join(", ")}`,
          },
          states.map(
            (state) =>
              batch[state] > 0 &&
              h("span", { key: state, class: `part state-${state}`, style: { "flex-grow": batch[state] } }),
          ),
          batch.pending > 0 && h("span", { key: "pending", class: "part", style: { "flex-grow": batch.pending } }),
        ),
        h(
          "p",
          { class: "node-counts" },
          states.map((state) =>
            h(
              "a",
              { key: state, href: address(["jobs"], { batch: id, state }) },
              badge(state, `${format.count(batch[state])} ${state}`),
            ),
          ),
          h(
            "a",
            { href: address(["jobs"], { batch: id, state: "waiting" }) },
            badge("waiting", `${format.count(batch.pending)} pending`),
          ),
        ),
      ),
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
