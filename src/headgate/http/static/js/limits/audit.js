/** The audit of a limit: the most starts in any window, compared with what its rule allows. */

import { command, option } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { t } from "../language.js";
import { badge, copyCommand, empty, link, panel } from "../parts.js";
import { address } from "../router.js";
import { table } from "../table.js";

/** The audit of a limit, or of one key. @param {string} name @param {any} audit @param {string} [key] */
export function auditPanel(name, audit, key) {
  if (audit === null) return null;
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
      aside: copyCommand(command("limits", "audit", name, ...option("--key", key)), t("Command")),
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
          cell: (verdict) =>
            link(
              address(["limits", name]) + "?" + new URLSearchParams({ key: verdict.key }),
              format.keyName(verdict.key),
            ),
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
