/** A limit: its rule, its keys, what was set for it, and whether it held. */

import { get, optional, path } from "../api.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { bucketTable } from "../limits/buckets.js";
import { askDeclared } from "../limits/declared.js";
import { settingsPanel } from "../limits/settings.js";
import { steering } from "../limits/steering.js";
import { auditPanel } from "../limits/verdicts.js";
import { badge, empty, heading, panel } from "../parts.js";
import { margin, told } from "../rule.js";

/** @type {import("../page.js").PageDefinition} */
export const limit = {
  title: ({ params }) => `Limit ${params.limit}`,
  every: 5_000,
  load: async ({ route }, signal) => {
    const name = route.params.limit;
    const known = await askDeclared(name, signal);
    const [buckets, audit] = await Promise.all([
      get("limits", { limit: name, count: 100 }, signal),
      known.countsStarts ? optional(get(path("limits", name, "audit"), {}, signal)) : null,
    ]);
    return { ...known, items: buckets.items, audit };
  },
  view: (context) => {
    const { data, route } = context;
    const name = route.params.limit;
    const mine = data.settings.filter((/** @type {any} */ setting) => setting.scope === "all");
    const isPaused = mine.some((/** @type {any} */ setting) => setting.is_paused);
    const isSet = mine.some((/** @type {any} */ setting) => setting.rule);
    const target = {
      limit: name,
      key: null,
      isPaused,
      isSet,
      rule: data.declared?.rule ?? null,
      grantsPermits: data.declared?.counts_starts === false,
    };
    return [
      heading(name, {
        crumbs: [["Limits", "limits"]],
        marks: [isPaused && badge("paused"), isSet && h("span", { class: "badge state-set" }, "set")],
        actions: steering(context, target),
      }),
      panel(
        "Rule",
        {},
        data.declared
          ? ruleWords(mine, data.declared.rule)
          : empty(
              "This app does not declare this limit",
              "Another app does, or one did. Its keys are shown, and can be forgotten when no job needs them.",
            ),
      ),
      panel(
        "Keys",
        { class: "bare", hint: "those with most waiting jobs first" },
        bucketTable(
          data.items,
          true,
          empty(
            "No key has used any of its budget",
            "A key shows here while it has used some of its budget, or jobs wait for it.",
          ),
        ),
      ),
      settingsPanel(data.settings),
      auditPanel(name, data.audit),
    ];
  },
};

/** @param {any[]} settings those for all keys @param {string} declared */
function ruleWords(settings, declared) {
  const words = told(declared);
  const longer = margin(declared);
  return [
    h("p", { class: "rule-words", key: "rule" }, h("b", null, words ?? declared), " for each key."),
    h(
      "p",
      { class: "hint", key: "hint" },
      "Declared as ",
      h("code", null, longer ? declared.replace(/ \+ [\d.]+s/, "") : declared),
      longer > 0 && `, with a margin of ${format.duration(longer)} for clocks that differ`,
      settings.some((setting) => setting.rule)
        ? "; another rule is set, which holds instead."
        : "; what is set at run time beats it.",
    ),
  ];
}
