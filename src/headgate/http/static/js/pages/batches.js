/** Batches: their progress, newest first. */

import { get } from "../api.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { t, word } from "../language.js";
import { badge, copyCommand, empty, frozenNote, heading, nameLinks, panel, tabs, when } from "../parts.js";
import { pager } from "../pager.js";
import { address } from "../router.js";
import { declared, table } from "../table.js";
import { progressBar } from "./batch.js";

/** @type {import("../page.js").PageDefinition} */
export const batches = {
  title: () => t("Batches"),
  isFrozen: (context) => context.isListInUse,
  load: ({ route }, signal) =>
    get("batches", { pending_only: isPendingOnly(route) || null, before: route.query.get("before"), count: 50 }, signal),
  view: (context) => {
    const { data, route } = context;
    const isPending = isPendingOnly(route);
    return [
      heading(t("Batches"), {
        actions: [
          tabs(t("Batches"), [
            { name: t("All"), href: "batches", isCurrent: !isPending },
            { name: t("Pending"), href: address(["batches"], { pending: "yes" }), isCurrent: isPending },
          ]),
          copyCommand(command("batches", "list", isPending && "--pending")),
        ],
      }),
      panel(
        isPending ? t("Pending batches") : t("All batches"),
        { class: "bare", hint: t("newest first"), aside: frozenNote(context) },
        table({
          label: t("Batches"),
          extra: "two-line",
          rows: data.items,
          key: (batch) => batch.id,
          empty: noBatches(route, isPending),
          columns: declared("batches", data.items, {
            id: (batch) => h("a", { class: "mono", href: address(["batches", batch.id]), title: batch.id }, format.shortId(batch.id)),
            tasks: (batch) => nameLinks("tasks", batch.tasks),
            state: (batch) => badge(batch.state ?? "running", word(batch.state ?? "pending")),
            schedule: { extra: "wide-cell" },
            enqueued_at: { extra: "time-cell wide-cell" },
            pending: { extra: "progress-cell wide-cell", cell: progressBar },
            total: (batch) => t("{count} of {total}", { count: format.count(batch.total - batch.pending), total: format.count(batch.total) }),
            failed: (batch) => h("span", { class: batch.failed ? "bad-text" : "faint" }, format.count(batch.failed)),
          }),
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
  if (route.query.has("before")) return empty(t("No more batches"), [h("a", { href: "batches" }, t("Back to the first page")), "."]);
  if (isPending) return empty(t("No pending batches"), [h("a", { href: "batches" }, t("Show all batches")), "."]);
  return empty(t("No batches"), [
    t("A batch is enqueued as a whole and finishes when all its jobs have finished:"),
    " ",
    h("code", null, "await batch([send.call(1), send.call(2)]).enqueue()"),
    ".",
  ]);
}
