/** The audit log: actions on jobs, limits, queues, schedules and nodes, and sign-ins. */

import { get } from "../api.js";
import { command, option } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { t, word } from "../language.js";
import { copyCommand, empty, heading, jobLink, link, panel } from "../parts.js";
import { address } from "../router.js";
import { select, text } from "../fields.js";
import { pager } from "../pager.js";
import { declared, table } from "../table.js";

/** @type {import("../page.js").PageDefinition} */
export const audit = {
  title: () => t("Audit log"),
  load: ({ route }, signal) => get("audit", { ...Object.fromEntries(route.query), count: 50 }, signal),
  view: (context) => {
    const { data, route } = context;
    const value = (/** @type {string} */ name) => route.query.get(name) ?? "";
    const set = (/** @type {string} */ name) => (/** @type {string} */ value) =>
      context.setQuery({ [name]: value || null, before: null });
    const isFiltered = ["kind", "subject", "actor"].some((name) => route.query.has(name));
    return [
      heading(t("Audit log"), {
        actions: copyCommand(
          command(
            "audit",
            ...option("--kind", value("kind")),
            ...option("--subject", value("subject")),
            ...option("--actor", value("actor")),
          ),
        ),
      }),
      h(
        "div",
        { class: "filters", key: "filters" },
        select(
          t("Kind"),
          value("kind"),
          [
            ["", t("all kinds")],
            ["job", t("Jobs")],
            ["limit", t("Limits")],
            ["queue", t("Queues")],
            ["schedule", t("Schedules")],
            ["node", t("Nodes")],
            ["user", t("Users")],
          ],
          set("kind"),
        ),
        text(t("Subject"), value("subject"), t("a job, limit, queue …"), set("subject")),
        text(t("Actor"), value("actor"), t("user or process"), set("actor")),
        isFiltered && link("audit", t("Clear filters")),
      ),
      panel(
        t("Entries"),
        { class: "bare" },
        table({
          label: t("Audit log"),
          extra: "two-line",
          rows: data.items,
          key: (entry) => entry.number,
          empty: empty(
            isFiltered ? t("No matching entries") : t("No entries yet"),
            isFiltered
              ? link("audit", t("Show all entries"))
              : t("Actions on jobs, limits, queues and schedules appear here with their actors, and are kept for 90 days."),
          ),
          columns: declared("audit", data.items, {
            actor: (entry) => link(address(["audit"], { actor: entry.actor }), entry.actor),
            action: { extra: "lead-cell", cell: (entry) => h("b", null, action(entry)) },
            kind: (entry) => word(entry.kind),
            subject: { extra: "main-cell", cell: (entry) => h("span", { class: "clamp", title: entry.subject }, subject(entry)) },
            detail: (entry) =>
              entry.detail
                ? h("span", { class: "clamp", title: detail(entry) }, detail(entry))
                : h("span", { class: "faint" }, "–"),
          }),
        }),
        pager(context),
      ),
    ];
  },
};

/** @param {any} entry */
function action({ action }) {
  const rule = /^set to (.+)$/s.exec(action)?.[1];
  return rule === undefined ? word(action) : t("set to {rule}", { rule });
}

/** What is said of an entry; of a setting of a limit, which keys it is for. @param {any} entry */
function detail({ kind, detail }) {
  const said = format.zoned(detail);
  if (kind !== "limit") return said;
  if (said === "all keys") return t("all keys");
  const [, scope, name] = /^(key|pattern|tier) (.+)$/s.exec(said) ?? [];
  if (scope === "key") return t("key {key}", { key: name });
  if (scope === "pattern") return t("pattern {pattern}", { pattern: name });
  return scope === "tier" ? t("tier {tier}", { tier: name }) : said;
}

/** @param {any} entry */
function subject(entry) {
  if (entry.kind === "job") return jobLink(entry.subject);
  if (entry.kind === "limit") return link(address(["limits", entry.subject]), entry.subject);
  if (entry.kind === "schedule") return link(address(["schedules", entry.subject]), entry.subject);
  if (entry.kind === "node") return link("nodes", entry.subject);
  if (entry.kind === "user") return entry.subject;
  return link("queues", entry.subject);
}
