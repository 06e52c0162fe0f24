/** One limit: its rule, its keys, its settings and its audit. */

import { get, optional, path } from "../api.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { bucketTable, orderHint } from "../limits/buckets.js";
import { loadDeclared } from "../limits/declared.js";
import { t, withElements } from "../language.js";
import { settingsPanel } from "../limits/settings.js";
import { limitActions } from "../limits/actions.js";
import { auditPanel } from "../limits/audit.js";
import { badge, empty, heading, panel } from "../parts.js";
import { describeStored, marginOf } from "../rule.js";

/** @type {import("../page.js").PageDefinition} */
export const limit = {
  title: ({ params }) => t("Limit {limit}", { limit: params.limit }),
  every: 5_000,
  ui: () => ({ audit: null }),
  load: async ({ route }, signal) => {
    const name = route.params.limit;
    const [declaration, buckets, history] = await Promise.all([
      loadDeclared(name, signal),
      get("limits", { limit: name, count: 100 }, signal),
      optional(get(path("limits", name, "history"), { span: 3600 }, signal)),
    ]);
    return { ...declaration, items: buckets.items, is_ranked: buckets.is_ranked, history };
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
        crumbs: [[t("Limits"), "limits"]],
        badges: [isPaused && badge("paused"), isSet && h("span", { class: "badge state-set" }, t("overridden"))],
        actions: limitActions(context, target),
      }),
      panel(
        t("Rule"),
        {},
        data.declared
          ? ruleText(settings, data.declared.rule)
          : empty(
              t("This app does not declare this limit"),
              t("Another app declares it, or an earlier version did. Remove it once no job needs it."),
            ),
        unlimitedText(data.history),
      ),
      panel(
        t("Keys"),
        { class: "bare", hint: orderHint(data) },
        bucketTable(
          data.items,
          true,
          empty(
            t("No keys in use"),
            t("A key appears here while part of its limit is used, or while jobs wait for it. To see an example, try the demo, which has a store of its own:"),
          ),
        ),
      ),
      settingsPanel(data.settings),
      auditPanel(context),
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
    withElements("{starts} without this limit in the last hour, because its store was unavailable.", {
      starts: h("b", null, format.plural(starts, "start")),
    }),
  );
}

/** @param {any[]} settings those for all keys @param {string} declared */
function ruleText(settings, declared) {
  const text = describeStored(declared);
  const margin = marginOf(declared);
  return [
    h("p", { class: "rule-text", key: "rule" }, withElements("{rule} for each key.", { rule: h("b", null, text ?? declared) })),
    h(
      "p",
      { class: "hint", key: "hint" },
      withElements("Declared as {rule}", { rule: h("code", null, margin ? declared.replace(/ \+ [\d.]+s/, "") : declared) }),
      margin > 0 && [", ", t("plus {duration} for clock differences", { duration: format.duration(margin) })],
      ". ",
      settings.some((setting) => setting.rule)
        ? t("A rule set at run time overrides it.")
        : t("A rule set at run time would override it."),
    ),
  ];
}
