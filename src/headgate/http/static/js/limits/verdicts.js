/** Whether a limit held: the most that started in any window, against what its rule allows. */

import { command, option } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { badge, copyCommand, empty, link, panel } from "../parts.js";
import { address } from "../router.js";
import { table } from "../table.js";

/** Whether it held. @param {string} name @param {any} audit @param {string} [key] */
export function auditPanel(name, audit, key) {
  if (audit === null) return null;
  const verdicts = /** @type {any[]} */ (audit.items);
  const looked = audit.is_cut ? ` of the last ${format.count(audit.starts)} starts` : "";
  const broken = verdicts.filter((verdict) => !verdict.held).length;
  return panel(
    "Did it hold?",
    {
      class: "bare",
      hint: verdicts.length
        ? broken
          ? `exceeded for ${format.plural(broken, "key")}`
          : `yes, in every window${looked}`
        : "",
      aside: copyCommand(command("limits", "audit", name, ...option("--key", key)), "Command"),
    },
    table({
      label: "Highest number of starts in any window",
      rows: verdicts.slice(0, 20),
      key: (verdict) => verdict.key,
      empty: empty("No start is recorded", "Of jobs that are still kept, none has started on it."),
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
          name: "Verdict",
          cell: (verdict) => (verdict.held ? badge("succeeded", "held") : badge("failed", "exceeded")),
        },
        { name: "Highest", align: "right", cell: (verdict) => h("b", null, format.count(verdict.highest)) },
        { name: "Bound", align: "right", cell: (verdict) => format.count(verdict.bound) },
        { name: "In any", align: "right", cell: (verdict) => format.duration(verdict.window) },
        { name: "Starts", align: "right", cell: (verdict) => format.count(verdict.starts) },
      ],
    }),
    broken > 0 &&
      h(
        "p",
        { class: "hint panel-note", key: "note" },
        "The rule of now is the judge, also of starts before it was set: one that was lowered meanwhile looks exceeded until they are no longer kept.",
      ),
  );
}
