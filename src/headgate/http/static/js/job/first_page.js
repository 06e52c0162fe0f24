/** Pages of jobs. The API reads a few thousand jobs for each, so the first ones may be empty although others are not. */

import { ApiError, get } from "../api.js";

/** The most empty pages that are read in a row to find one with jobs. */
const MAX_PAGES = 20;
/** Milliseconds after which no further page is read. */
const PATIENCE = 10_000;
const SEARCH_ERRORS = ["search_too_long", "too_many_searches"];

/**
 * `read` is how many jobs were read in all, the last of them enqueued at `reached`, if the page ended with them; else
 * it is null.
 *
 * @typedef {{items: any[], next: string | null, read: number | null, reached: string | null}} JobsPage
 */

/** Return the page at a cursor, or the first one after it with jobs. @param {Record<string, string | number | null>} filter @param {string | null} before @param {AbortSignal} signal @returns {Promise<JobsPage>} */
export async function firstWithJobs(filter, before, signal) {
  const startedAt = performance.now();
  /** @type {JobsPage} */
  let page = await get("jobs", { ...filter, before }, signal);
  for (let pages = 1; pages < MAX_PAGES && !page.items.length && page.next; pages++) {
    if (performance.now() - startedAt > PATIENCE) break;
    try {
      const following = await get("jobs", { ...filter, before: page.next }, signal);
      const read = following.read === null ? null : (page.read ?? 0) + following.read;
      page = { ...following, read, reached: following.reached ?? page.reached };
    } catch (error) {
      if (isSearchError(error)) break;
      throw error;
    }
  }
  return page;
}

/** Whether a search of payloads was ended before it had read all jobs. @param {unknown} error */
export function isSearchError(error) {
  return error instanceof ApiError && SEARCH_ERRORS.includes(error.code);
}
