/** Load a limit as the code declares it, and its settings of run time. */

import { get, optional } from "../api.js";

/**
 * Load a limit. It `countsStarts`, and can be audited, if this app declares it and it is not a concurrency limit.
 *
 * @param {string} name @param {AbortSignal} signal
 */
export async function loadDeclared(name, signal) {
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
