/** One limit: its rule, its keys, its settings and its audit. */

import { get, optional, path } from "../api.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { bucketTable } from "../limits/buckets.js";
import { loadDeclared } from "../limits/declared.js";
import { settingsPanel } from "../limits/settings.js";
import { limitActions } from "../limits/actions.js";
import { auditPanel } from "../limits/audit.js";
import { badge, empty, heading, panel } from "../parts.js";
import { describeStored, marginOf } from "../rule.js";

/** @type {import("../page.js").PageDefinition} */
export const limit = {
  title: ({ params }) => `Limit ${params.limit}`,
  every: 5_000,
  load: async ({ route }, signal) => {
    const name = route.params.limit;
    const declaration = await loadDeclared(name, signal);
    const [buckets, history, audit] = await Promise.all([
      get("limits", { limit: name, count: 100 }, signal),
      optional(get(path("limits", name, "history"), { span: 3600 }, signal)),
      declaration.countsStarts ? optional(get(path("limits", name, "audit"), {}, signal)) : null,
    ]);
    return { ...declaration, items: buckets.items, history, audit };
  },
  view: (context) => {
    const { data, route } = context;
    const name = route.params.limit;
    const settings = data.settings.filter((/** @type {any} */ setting) => setting.scope === "all");
    const isPaused = settings.some((/** @type {any} */ setting) => setting.is_paused);
    const isSet = settings.some((/** @type {any} */ setting) => setting.rule);
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
        badges: [isPaused && badge("paused"), isSet && h("span", { class: "badge state-set" }, "set")],
        actions: limitActions(context, target),
      }),
      panel(
        "Rule",
        {},
        data.declared
          ? ruleText(settings, data.declared.rule)
          : empty(
              "This app does not declare this limit",
              "Another app declares it, or an earlier version did. Remove it once no job needs it.",
            ),
        unlimitedText(data.history),
      ),
      panel(
        "Keys",
        { class: "bare", hint: "most waiting jobs first" },
        bucketTable(
          data.items,
          true,
          empty(
            "No keys in use",
            "A key appears here while part of its limit is used, or while jobs wait for it.",
          ),
        ),
      ),
      settingsPanel(data.settings),
      auditPanel(name, data.audit),
    ];
  },
};

/** How many starts were not charged, because the limit's own store was unavailable. @param {any} history */
function unlimitedText(history) {
  const starts = (history?.points ?? []).reduce(
    (/** @type {number} */ sum, /** @type {any} */ point) => sum + point.unlimited,
    0,
  );
  if (!starts) return null;
  return h(
    "p",
    { class: "hint", key: "unlimited" },
    h("b", null, format.plural(starts, "start")),
    " went without this limit in the last hour, because its store was unavailable.",
  );
}

/** @param {any[]} settings those for all keys @param {string} declared */
function ruleText(settings, declared) {
  const text = describeStored(declared);
  const margin = marginOf(declared);
  return [
    h("p", { class: "rule-text", key: "rule" }, h("b", null, text ?? declared), " for each key."),
    h(
      "p",
      { class: "hint", key: "hint" },
      "Declared as ",
      h("code", null, margin ? declared.replace(/ \+ [\d.]+s/, "") : declared),
      margin > 0 && `, plus ${format.duration(margin)} for clock differences`,
      settings.some((setting) => setting.rule)
        ? ". A rule set at run time overrides it."
        : ". A rule set at run time would override it.",
    ),
  ];
}
