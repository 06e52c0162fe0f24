/** Limits: the budget of each key, what waits for it, and when it opens. */

import { get, optional } from "../api.js";
import { command, option } from "../commands.js";
import { h } from "../dom.js";
import { select, text } from "../fields.js";
import * as format from "../format.js";
import { bucketTable, ruleWords } from "../limits/buckets.js";
import { settingsPanel } from "../limits/settings.js";
import { pager } from "../pager.js";
import { breakable, copyCommand, empty, heading, held, link, panel } from "../parts.js";
import { address } from "../router.js";

/** @typedef {import("../page.js").Context} Context */

/** @type {import("../page.js").PageDefinition} */
export const limits = {
  title: () => "Limits",
  every: 5_000,
  standsStill: (context) => context.isPointedAt,
  load: async ({ route }, signal) => {
    const limit = route.query.get("limit");
    const [page, declared, settings] = await Promise.all([
      get("limits", { limit, ...asked(route.query), before: route.query.get("before"), count: 100 }, signal),
      optional(get("limits/declared", {}, signal)),
      optional(get("limits/settings", { limit }, signal)),
    ]);
    return { ...page, declared: declared?.items ?? [], settings: settings?.items ?? [] };
  },
  view: (context) => {
    const { data, route } = context;
    const limit = route.query.get("limit") ?? "";
    const key = route.query.get("key") ?? "";
    const prefix = route.query.get("prefix") ?? "";
    const set = (/** @type {string} */ name) => (/** @type {string} */ value) =>
      context.setQuery({ [name]: value || null, before: null });
    return [
      heading("Limits", {
        actions: copyCommand(
          command("limits", "list", ...option("--limit", limit), ...option("--key", key), ...option("--prefix", prefix)),
        ),
      }),
      declaredCards(data),
      h(
        "div",
        { class: "filters", key: "filters" },
        select(
          "Limit",
          limit,
          [["", "all limits"], ...data.declared.map((/** @type {any} */ each) => [each.limit, each.limit])],
          set("limit"),
        ),
        text("Key", key, "tenant:42", set("key")),
        text("Keys that begin with", prefix, "stripe:", set("prefix")),
        (limit || key || prefix) &&
          h(
            "div",
            { class: "filter-buttons", key: "clear" },
            h("a", { class: "button", href: "limits" }, "Clear filters"),
          ),
      ),
      panel(
        "Keys",
        { class: "bare", hint: "those with most waiting jobs first", aside: held(context) },
        bucketTable(data.items, false, nothing(limit, key || prefix)),
        pager(context),
      ),
      settingsPanel(data.settings),
    ];
  },
};

/** Which keys are asked for. @param {URLSearchParams} query */
function asked(query) {
  return { key: query.get("key"), prefix: query.get("prefix") };
}

/** @param {any} data */
function declaredCards(data) {
  return h(
    "div",
    { class: "cards", key: "declared" },
    data.declared.map((/** @type {any} */ each) => {
      const mine = data.items.filter((/** @type {any} */ bucket) => bucket.limit === each.limit);
      const waiting = mine.reduce((/** @type {number} */ sum, /** @type {any} */ bucket) => sum + bucket.waiting, 0);
      const isPaused = data.settings.some(
        (/** @type {any} */ setting) => setting.limit === each.limit && setting.scope === "all" && setting.is_paused,
      );
      return h(
        "a",
        { class: "card", href: address(["limits", each.limit]), key: each.limit },
        h(
          "span",
          { class: "card-name" },
          h("span", { class: "clamp", title: each.limit }, breakable(each.limit)),
          isPaused && h("span", { class: "badge state-paused" }, "paused"),
        ),
        h("span", { class: "card-rule" }, ruleWords(each.rule)),
        h(
          "span",
          { class: "card-below faint" },
          waiting ? `${format.plural(waiting, "job waits", "jobs wait")} for it` : "nothing waits for it",
        ),
      );
    }),
  );
}

/** @param {string} limit @param {string} key */
function nothing(limit, key) {
  if (limit || key)
    return empty("No such key", [
      "No key that is kept is like that. A key is kept while it has used some of its budget, or jobs wait for it. ",
      link("limits", "Show all"),
      ".",
    ]);
  return empty(
    "No key has used any of its budget",
    [
      "A limit says how often, or how many at once, per key. Give one to a task: ",
      h("code", null, "@app.task(limits=…)"),
      ", and its keys show here.",
    ],
    command("demo"),
  );
}
