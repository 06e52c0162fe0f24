/** Load a limit as the code declares it, and its settings of run time. */

import { get, path } from "../api.js";

/**
 * Load a limit. It `countsStarts`, and can be audited, if this app declares it and it is not a concurrency limit.
 *
 * @param {string} name @param {AbortSignal} signal
 */
export async function loadDeclared(name, signal) {
  const { declared, settings } = await get(path("limits", name, "rules"), {}, signal);
  return { declared, settings, countsStarts: declared !== null && declared.counts_starts };
}
