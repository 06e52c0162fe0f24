/** Batches: their progress, newest first. */

import { get } from "../api.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { badge, copyCommand, empty, frozenNote, heading, panel, tabs, when } from "../parts.js";
import { pager } from "../pager.js";
import { address } from "../router.js";
import { table } from "../table.js";
import { progressBar } from "./batch.js";

/** @type {import("../page.js").PageDefinition} */
export const batches = {
  title: () => "Batches",
  isFrozen: (context) => context.isListInUse,
  load: ({ route }, signal) =>
    get("batches", { pending_only: isPendingOnly(route) || null, before: route.query.get("before"), count: 50 }, signal),
  view: (context) => {
    const { data, route } = context;
    const isPending = isPendingOnly(route);
    return [
      heading("Batches", {
        actions: [
          tabs("Batches", [
            { name: "All", href: "batches", isCurrent: !isPending },
            { name: "Pending", href: address(["batches"], { pending: "yes" }), isCurrent: isPending },
          ]),
          copyCommand(command("batches", "list", isPending && "--pending")),
        ],
      }),
      panel(
        isPending ? "Pending batches" : "All batches",
        { class: "bare", hint: "newest first", aside: frozenNote(context) },
        table({
          label: "Batches",
          rows: data.items,
          key: (batch) => batch.id,
          empty: noBatches(route, isPending),
          columns: [
            {
              name: "Batch",
              cell: (batch) => h("a", { class: "mono", href: address(["batches", batch.id]), title: batch.id }, format.shortId(batch.id)),
            },
            { name: "State", cell: (batch) => badge(batch.state ?? "running", batch.state ?? "pending") },
            { name: "Progress", extra: "progress-cell", cell: (batch) => progressBar(batch) },
            {
              name: "Finished",
              align: "right",
              cell: (batch) => `${format.count(batch.total - batch.pending)} of ${format.count(batch.total)}`,
            },
            {
              name: "Failed",
              align: "right",
              cell: (batch) => h("span", { class: batch.failed ? "bad-text" : "faint" }, format.count(batch.failed)),
            },
            { name: "Enqueued", align: "right", extra: "time-cell", cell: (batch) => when(batch.enqueued_at) },
          ],
        }),
        pager(context),
      ),
    ];
  },
};

/** @param {import("../router.js").Route} route */
function isPendingOnly(route) {
  return route.query.get("pending") === "yes";
}

/** @param {import("../router.js").Route} route @param {boolean} isPending */
function noBatches(route, isPending) {
  if (route.query.has("before")) return empty("No more batches", [h("a", { href: "batches" }, "Back to the first page"), "."]);
  if (isPending) return empty("No pending batches", [h("a", { href: "batches" }, "Show all batches"), "."]);
  return empty("No batches", [
    "A batch is enqueued as a whole and finishes when all its jobs have finished: ",
    h("code", null, "await batch([send.call(1), send.call(2)]).enqueue()"),
    ".",
  ]);
}
