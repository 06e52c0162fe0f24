/** Settings made at run time, which override the code. */

import { h } from "../dom.js";
import * as format from "../format.js";
import { t } from "../language.js";
import { link, panel, when } from "../parts.js";
import { address } from "../router.js";
import { table } from "../table.js";

/** @param {any[]} settings */
export function settingsPanel(settings) {
  if (!settings.length) return null;
  return panel(
    t("Set at run time"),
    { class: "bare", hint: t("overrides the code, also after deploys") },
    table({
      label: t("Set at run time"),
      rows: settings,
      key: (setting) => `${setting.limit} ${setting.scope} ${setting.target}`,
      columns: [
        { name: t("Limit"), cell: (setting) => link(address(["limits", setting.limit]), setting.limit) },
        {
          name: t("For"),
          cell: (setting) =>
            setting.scope === "all"
              ? t("all keys")
              : [
                  setting.scope === "member" ? "key" : setting.scope,
                  " ",
                  h("b", { class: "clamp", title: setting.target }, setting.target),
                ],
        },
        {
          name: t("Setting"),
          cell: (setting) => [
            setting.rule && h("span", null, setting.words ?? storedRule(setting.rule)),
            setting.set_by && h("span", { class: "cell-below faint" }, setting.set_by, setting.set_at && [", ", when(setting.set_at)]),
            setting.tier && t("in tier {tier}", { tier: setting.tier }),
            setting.is_paused && h("span", { class: "badge state-paused" }, t("paused")),
          ],
        },
      ],
    }),
  );
}

/** A stored rule as text. @param {any} rule */
function storedRule(rule) {
  try {
    const stored = typeof rule === "string" ? JSON.parse(rule) : rule;
    if (stored.period)
      return `${t("{count} in {duration}", { count: format.count(stored.count), duration: format.duration(stored.period / 1e6) })} (${stored.type ?? stored.kind ?? t("rule")})`;
    if (stored.count) return t("{count} at once", { count: format.count(stored.count) });
    return JSON.stringify(stored);
  } catch {
    return String(rule);
  }
}

/** The tier that a key is in by these settings; members are stored as patterns. @param {any[]} settings @param {string} key @returns {string | undefined} */
export function tierOf(settings, key) {
  const pattern = key.replace(/[*?[]/g, "[$&]");
  return settings.find(({ scope, target }) => scope === "member" && target === pattern)?.tier;
}
