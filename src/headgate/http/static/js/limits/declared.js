/** What the code declares of a limit, and what was set for it at run time. */

import { get, optional } from "../api.js";

/**
 * `countsStarts` says that whether it held can be told: of starts only, and of limits that this app knows.
 *
 * @param {string} name @param {AbortSignal} signal
 */
export async function askDeclared(name, signal) {
  const [declared, settings] = await Promise.all([
    optional(get("limits/declared", {}, signal)),
    optional(get("limits/settings", { limit: name }, signal)),
  ]);
  const rule = declared?.items.find((/** @type {any} */ each) => each.limit === name) ?? null;
  return {
    declared: rule,
    settings: settings?.items ?? [],
    countsStarts: rule !== null && rule.counts_starts,
  };
}
