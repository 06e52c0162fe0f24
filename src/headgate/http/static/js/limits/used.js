/** The limits that the jobs of a task or a queue use. */

import { h } from "../dom.js";
import { t } from "../language.js";
import { breakable, link, panel } from "../parts.js";
import { address } from "../router.js";
import { table } from "../table.js";
import { ruleLabel } from "./buckets.js";

/** @param {any[]} limits as declared @param {string} none */
export function usedLimits(limits, none) {
  return panel(
    t("Limits"),
    { class: "bare" },
    limits.length > 0
      ? table({
          label: t("Limits"),
          rows: limits,
          key: (limit) => limit.limit,
          extra: "compact",
          columns: [
            { name: t("Limit"), cell: (limit) => link(address(["limits", limit.limit]), h("b", null, breakable(limit.limit))) },
            { name: t("Rule"), cell: (limit) => ruleLabel(limit.rule) },
            { name: t("Keys"), cell: (limit) => link(address(["limits"], { limit: limit.limit }), t("Show keys")) },
          ],
        })
      : h("p", { class: "panel-note faint" }, none),
  );
}
