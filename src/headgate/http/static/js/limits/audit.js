/** The audit of a limit: the most starts in any window, compared with what its rule allows. */

import { command, option } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { badge, copyCommand, empty, link, panel } from "../parts.js";
import { address } from "../router.js";
import { table } from "../table.js";

/** The audit of a limit, or of one key. @param {string} name @param {any} audit @param {string} [key] */
export function auditPanel(name, audit, key) {
  if (audit === null) return null;
  const verdicts = /** @type {any[]} */ (audit.items);
  const range = audit.is_cut ? ` of the last ${format.plural(audit.starts, "start")}` : "";
  const exceeded = verdicts.filter((verdict) => !verdict.is_within_limit).length;
  return panel(
    "Audit",
    {
      class: "bare",
      hint: verdicts.length
        ? exceeded
          ? `exceeded for ${format.plural(exceeded, "key")}`
          : `within the limit in every window${range}`
        : "",
      aside: copyCommand(command("limits", "audit", name, ...option("--key", key)), "Command"),
    },
    table({
      label: "Highest number of starts in any window",
      rows: verdicts.slice(0, 20),
      key: (verdict) => verdict.key,
      empty: empty("No recorded starts", `No retained job has started under this ${key === undefined ? "limit" : "key"}.`),
      columns: [
        {
          name: "Key",
          isHidden: key !== undefined,
          cell: (verdict) =>
            link(
              address(["limits", name]) + "?" + new URLSearchParams({ key: verdict.key }),
              format.keyName(verdict.key),
            ),
        },
        {
          name: "Result",
          cell: (verdict) => (verdict.is_within_limit ? badge("succeeded", "within limit") : badge("failed", "exceeded")),
        },
        { name: "Highest", align: "right", cell: (verdict) => h("b", null, format.count(verdict.highest)) },
        { name: "Allowed", align: "right", cell: (verdict) => format.count(verdict.bound) },
        { name: "Window", align: "right", cell: (verdict) => format.duration(verdict.window) },
        { name: "Starts", align: "right", cell: (verdict) => format.count(verdict.starts) },
      ],
    }),
    exceeded > 0 &&
      h(
        "p",
        { class: "hint panel-note", key: "note" },
        "Past starts are checked against the current rule. If the rule was lowered, older starts may exceed it until their jobs are pruned.",
      ),
  );
}
