/** The audit of a limit: the most starts in any window, compared with what its rule allows. It is made when it is asked for. */

import { get, messageOf, path } from "../api.js";
import { command, option } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { t } from "../language.js";
import { badge, bucketHref, button, copyCommand, empty, link, panel } from "../parts.js";
import { table } from "../table.js";

/** @typedef {import("../page.js").Context} Context */

/** The audit of a limit, or of one key; nothing for a limit that has none. @param {Context} context */
export function auditPanel(context) {
  if (!context.data.countsStarts) return null;
  const { limit: name, key } = context.route.params;
  const state = auditState(context);
  const actions = [
    button(state.isRunning ? t("Checking…") : state.audit ? t("Check again") : t("Check past starts"), { why: state.isRunning ? t("A check is running") : null }, () =>
      void runAudit(context),
    ),
    copyCommand(command("limits", "audit", name, ...option("--key", key)), t("Command")),
  ];
  if (state.audit) return verdictPanel(name, state.audit, key, actions);
  return panel(
    t("Audit"),
    { aside: actions },
    h(
      "p",
      { class: state.error ? "bad-text" : "hint", key: "state", "aria-live": "polite" },
      state.error || t("A check compares the starts that the store keeps with the rule. It may take a few seconds."),
    ),
  );
}

/** The audit of what the page shows. @param {Context} context @returns {{of: string, isRunning: boolean, audit: any, error: string}} */
export function auditState({ ui, route }) {
  const of = JSON.stringify(route.params);
  return ui.audit?.of === of ? ui.audit : { of, isRunning: false, audit: null, error: "" };
}

/** Read the audit; the request ends when the page is left. @param {Context} context */
async function runAudit(context) {
  const { limit: name, key } = context.route.params;
  const before = auditState(context);
  const show = (/** @type {object} */ changes) => {
    if (context.ui.audit.of === before.of) context.update({ audit: { ...before, ...changes } });
  };
  context.update({ audit: { ...before, isRunning: true, error: "" } });
  try {
    show({ audit: await get(path("limits", name, "audit"), { key }, context.left), isRunning: false, error: "" });
  } catch (error) {
    if (!context.left.aborted) show({ audit: null, isRunning: false, error: messageOf(error) });
  }
}

/** @param {string} name @param {any} audit @param {string | undefined} key @param {import("../dom.js").Children} aside */
function verdictPanel(name, audit, key, aside) {
  const verdicts = /** @type {any[]} */ (audit.items);
  const range = audit.is_cut ? format.plural(audit.starts, "start") : "";
  const exceeded = verdicts.filter((verdict) => !verdict.is_within_limit).length;
  return panel(
    t("Audit"),
    {
      class: "bare",
      hint: verdicts.length
        ? exceeded
          ? t("exceeded for {keys}", { keys: format.plural(exceeded, "key") })
          : range
          ? t("within the limit in every window of the last {starts}", { starts: range })
          : t("within the limit in every window")
        : "",
      aside,
    },
    table({
      label: t("Highest number of starts in any window"),
      rows: verdicts.slice(0, 20),
      key: (verdict) => verdict.key,
      empty: empty(t("No recorded starts"), key === undefined
          ? t("No retained job has started under this limit.")
          : t("No retained job has started under this key.")),
      columns: [
        {
          name: t("Key"),
          isHidden: key !== undefined,
          cell: (verdict) => link(bucketHref(name, verdict.key), format.keyName(verdict.key)),
        },
        {
          name: t("Result"),
          cell: (verdict) => (verdict.is_within_limit ? badge("succeeded", t("within limit")) : badge("failed", t("exceeded"))),
        },
        { name: t("Highest"), align: "right", cell: (verdict) => h("b", null, format.count(verdict.highest)) },
        { name: t("Allowed"), align: "right", cell: (verdict) => format.count(verdict.bound) },
        { name: t("Window"), align: "right", cell: (verdict) => format.duration(verdict.window) },
        { name: t("Starts"), align: "right", cell: (verdict) => format.count(verdict.starts) },
      ],
    }),
    audit.is_cut &&
      h(
        "p",
        { class: "hint panel-note", key: "cut" },
        t("Only the newest {starts} were checked, those since {time}. The command checks all that are kept.", {
          starts: range,
          time: format.clock(audit.since),
        }),
      ),
    exceeded > 0 &&
      h(
        "p",
        { class: "hint panel-note", key: "note" },
        t("Past starts are checked against the current rule. If the rule was lowered, older starts may exceed it until their jobs are pruned."),
      ),
  );
}
