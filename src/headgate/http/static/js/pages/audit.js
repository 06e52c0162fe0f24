/** The audit log: what people did to jobs, limits, queues and schedules. */

import { get } from "../api.js";
import { command, option } from "../commands.js";
import { h } from "../dom.js";
import { copyCommand, empty, heading, jobLink, link, panel, when } from "../parts.js";
import { address } from "../router.js";
import { select, text } from "../fields.js";
import { pager } from "../pager.js";
import { table } from "../table.js";

/** @type {import("../page.js").PageDefinition} */
export const audit = {
  title: () => "Audit log",
  load: ({ route }, signal) => get("audit", { ...Object.fromEntries(route.query), count: 50 }, signal),
  view: (context) => {
    const { data, route } = context;
    const asked = (/** @type {string} */ name) => route.query.get(name) ?? "";
    const set = (/** @type {string} */ name) => (/** @type {string} */ value) =>
      context.setQuery({ [name]: value || null, before: null });
    const isFiltered = ["kind", "subject", "actor"].some((name) => route.query.has(name));
    return [
      heading("Audit log", {
        actions: copyCommand(
          command(
            "audit",
            ...option("--kind", asked("kind")),
            ...option("--subject", asked("subject")),
            ...option("--actor", asked("actor")),
          ),
        ),
      }),
      h(
        "div",
        { class: "filters", key: "filters" },
        select(
          "Kind",
          asked("kind"),
          [
            ["", "Everything"],
            ["job", "Jobs"],
            ["limit", "Limits"],
            ["queue", "Queues"],
            ["schedule", "Schedules"],
          ],
          set("kind"),
        ),
        text("Subject", asked("subject"), "a job, limit, queue …", set("subject")),
        text("Actor", asked("actor"), "who did it", set("actor")),
        isFiltered && link("audit", "Clear"),
      ),
      panel(
        "Entries",
        { class: "bare" },
        table({
          label: "Audit log",
          rows: data.items,
          key: (entry) => entry.number,
          empty: empty(
            isFiltered ? "Nobody did such a thing" : "Nobody did anything yet",
            isFiltered
              ? "No entry matches what you asked for."
              : "What people do to jobs, limits, queues and schedules is kept here, with who did it, for 90 days.",
          ),
          columns: [
            { name: "When", cell: (entry) => when(entry.at) },
            { name: "Who", cell: (entry) => link(address(["audit"], { actor: entry.actor }), entry.actor) },
            { name: "What", cell: (entry) => h("b", null, entry.action) },
            { name: "Kind", cell: (entry) => entry.kind },
            { name: "Subject", cell: (entry) => h("span", { class: "clamp", title: entry.subject }, subject(entry)) },
            {
              name: "Details",
              cell: (entry) =>
                entry.detail
                  ? h("span", { class: "clamp", title: entry.detail }, entry.detail)
                  : h("span", { class: "faint" }, "–"),
            },
          ],
        }),
        pager(context),
      ),
    ];
  },
};

/** @param {any} entry */
function subject(entry) {
  if (entry.kind === "job") return jobLink(entry.subject);
  if (entry.kind === "limit") return link(address(["limits", entry.subject]), entry.subject);
  if (entry.kind === "schedule") return link(address(["schedules", entry.subject]), entry.subject);
  return link("queues", entry.subject);
}
