/** Limits: how much each key has used, how many jobs wait, and when the next may start. */

import { get, optional } from "../api.js";
import { command, option } from "../commands.js";
import { h } from "../dom.js";
import { select, text } from "../fields.js";
import * as format from "../format.js";
import { bucketTable, orderHint, ruleLabel } from "../limits/buckets.js";
import { t, withElements } from "../language.js";
import { settingsPanel } from "../limits/settings.js";
import { pager } from "../pager.js";
import { breakable, copyCommand, empty, heading, frozenNote, link, panel } from "../parts.js";
import { address } from "../router.js";
import { countedAgo } from "./overview.js";

/** @typedef {import("../page.js").Context} Context */

/** @type {import("../page.js").PageDefinition} */
export const limits = {
  title: () => t("Limits"),
  every: 5_000,
  isFrozen: (context) => context.isListInUse,
  load: async ({ route }, signal) => {
    const limit = route.query.get("limit");
    const [page, declared, overview, settings] = await Promise.all([
      get("limits", { limit, ...keyQuery(route.query), before: route.query.get("before"), count: 100 }, signal),
      optional(get("limits/declared", {}, signal)),
      get("overview", {}, signal),
      optional(get("limits/settings", { limit }, signal)),
    ]);
    return { ...page, declared: declared?.items ?? [], overview, settings: settings?.items ?? [] };
  },
  view: (context) => {
    const { data, route } = context;
    const limit = route.query.get("limit") ?? "";
    const key = route.query.get("key") ?? "";
    const prefix = route.query.get("prefix") ?? "";
    const set = (/** @type {string} */ name) => (/** @type {string} */ value) =>
      context.setQuery({ [name]: value || null, before: null });
    return [
      heading(t("Limits"), {
        actions: copyCommand(
          command("limits", "list", ...option("--limit", limit), ...option("--key", key), ...option("--prefix", prefix)),
        ),
      }),
      declaredCards(data),
      h(
        "div",
        { class: "filters", key: "filters" },
        select(
          t("Limit"),
          limit,
          [["", t("all limits")], ...data.declared.map((/** @type {any} */ each) => [each.limit, each.limit])],
          set("limit"),
        ),
        text(t("Key"), key, "tenant:42", set("key")),
        text(t("Key prefix"), prefix, "stripe:", set("prefix")),
        (limit || key || prefix) &&
          h(
            "div",
            { class: "filter-buttons", key: "clear" },
            h("a", { class: "button", href: "limits" }, t("Clear filters")),
          ),
      ),
      panel(
        t("Keys"),
        { class: "bare", hint: orderHint(data), aside: frozenNote(context) },
        bucketTable(data.items, false, emptyList(limit, key || prefix)),
        pager(context),
      ),
      settingsPanel(data.settings),
    ];
  },
};

/** The key filters of the address. @param {URLSearchParams} query */
function keyQuery(query) {
  return { key: query.get("key"), prefix: query.get("prefix") };
}

/** How many jobs wait for a limit, whatever page and filter the list of keys has. @param {any} overview @param {any} status */
function waitingFor(overview, status) {
  if (overview.counted_at === null) return t("counting jobs");
  const jobs = status?.waiting ? format.plural(status.waiting, "job waiting", "jobs waiting") : t("no waiting jobs");
  return [jobs, countedAgo(overview) && ` (${countedAgo(overview)})`];
}

/** How many keys a limit tracks, if they are in the answer. @param {any} summary */
function trackedKeys(summary) {
  if (!summary) return null;
  return [", ", summary.is_exact ? format.plural(summary.keys, "key") : t("{count} keys", { count: format.bounded(summary.keys, false) })];
}

/** How many jobs started without a limit, because its own store was unavailable. @param {any} summary */
function failedOpen(summary) {
  if (!summary?.unlimited) return null;
  return h(
    "span",
    { class: "card-below", title: t("Its store was unavailable.") },
    t("{starts} without this limit in 24 hours", { starts: format.plural(summary.unlimited, "start") }),
  );
}

/** Cards of the declared limits; that of mutexes, which every app has, only while it has keys. @param {any} data */
function declaredCards(data) {
  const summaries = new Map(data.limits.map((/** @type {any} */ each) => [each.limit, each]));
  const isShown = (/** @type {any} */ each) => each.limit !== "mutex" || summaries.has("mutex");
  return h(
    "div",
    { class: "cards", key: "declared" },
    data.declared.filter(isShown).map((/** @type {any} */ each) => {
      const status = data.overview.limits.find((/** @type {any} */ limit) => limit.limit === each.limit);
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
          isPaused && h("span", { class: "badge state-paused" }, t("paused")),
        ),
        h("span", { class: "card-rule" }, ruleLabel(status?.rule ?? each.rule)),
        h("span", { class: "card-below faint" }, waitingFor(data.overview, status), trackedKeys(summaries.get(each.limit))),
        failedOpen(summaries.get(each.limit)),
      );
    }),
  );
}

/** @param {string} limit @param {string} key */
function emptyList(limit, key) {
  if (limit || key)
    return empty(t("No matching keys"), [
      t("A key is listed while part of its limit is used, or while jobs wait for it."),
      " ",
      link("limits", t("Show all keys")),
      ".",
    ]);
  return empty(
    t("No keys in use"),
    withElements("A limit bounds how often jobs start, or how many run at once, per key. Give one to a task: {example}. Or try the demo, which has a store of its own:", {
      example: h("code", null, '@app.task(limits=[RateLimit("10/m", key="{tenant}")])'),
    }),
    command("demo"),
  );
}
