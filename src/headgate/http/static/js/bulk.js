/** Change many jobs: count them, ask for confirmation, then change them in chunks and show the progress. */

import { ApiError, change, path } from "./api.js";
import { command, filterOptions } from "./commands.js";
import { ask } from "./dialogs.js";
import { h } from "./dom.js";
import * as format from "./format.js";
import { progressToast, toast } from "./toasts.js";

/** @typedef {"retry" | "cancel" | "run_now"} Action */
/** @typedef {{matched: number, changed: number, refused: Record<string, number>, is_cut: boolean}} BulkResult */

const MAX_JOBS = 10_000;
/** Jobs changed by one request. */
const CHUNK = 1_000;
const CONCURRENT_REQUESTS = 4;

/** The texts, endpoint and command of each action. @type {Record<Action, {verb: string, done: string, endpoint: string, command: string, effect: string}>} */
export const ACTIONS = {
  retry: {
    verb: "Retry",
    done: "retried",
    endpoint: "retry",
    command: "retry",
    effect: "The jobs wait again, with all their attempts. Only failed and cancelled jobs are retried.",
  },
  cancel: {
    verb: "Cancel",
    done: "cancelled",
    endpoint: "cancel",
    command: "cancel",
    effect: "Waiting jobs never run. Running jobs are asked to stop. Finished jobs do not change.",
  },
  run_now: {
    verb: "Run now",
    done: "made ready",
    endpoint: "run-now",
    command: "run",
    effect: "The jobs become ready now instead of at their scheduled time. Their limits still apply.",
  },
};

/** The action with its object: "Cancel 5 jobs", "Run 5 jobs now". @param {Action} action @param {string} jobs */
function phrase(action, jobs) {
  return action === "run_now" ? `Run ${jobs} now` : `${ACTIONS[action].verb} ${jobs}`;
}

/**
 * Count the jobs that match a filter, ask for confirmation, then change them.
 *
 * @param {Action} action @param {Record<string, string>} filter as the API takes it @param {() => void} after
 */
export async function changeMatching(action, filter, after) {
  const { done, effect } = ACTIONS[action];
  try {
    // Leave out jobs that are enqueued while the dialog is open.
    const enqueued_before = new Date(format.now()).toISOString();
    const counted = await bulk(action, { enqueued_before, ...filter }, MAX_JOBS, true);
    if (!counted.changed) {
      toast(`No matching job can be ${done}${refusals(counted)}`, "plain");
      return;
    }
    const jobs = format.plural(counted.changed, "job");
    const isAll = !Object.keys(filter).length;
    const isConfirmed = await ask({
      title: `${phrase(action, `${counted.is_cut ? "the first " : ""}${jobs}`)}?`,
      action: phrase(action, jobs),
      dismiss: action === "cancel" ? "Keep the jobs" : undefined,
      danger: action === "cancel",
      body: [
        h("p", null, isAll ? h("b", null, "No filter is set: this applies to all jobs in the store. ") : null, effect),
        counted.is_cut &&
          h("p", null, `More jobs match. One action changes up to ${format.count(MAX_JOBS)} jobs; repeat it for the rest.`),
        refusedList(counted),
        h(
          "p",
          { class: "command-line" },
          h("code", null, command("jobs", ACTIONS[action].command, "--all", ...filterOptions(filter))),
        ),
      ],
    });
    if (!isConfirmed) return;
    const result = await inChunks(action, { enqueued_before, ...filter }, counted.changed);
    toast(`${format.plural(result.changed, "job")} ${done}${refusals(result)}`);
  } catch (error) {
    toast(error instanceof Error ? error.message : String(error), "bad");
  }
  after();
}

/**
 * Change the selected jobs one by one; jobs whose state no longer allows it are skipped and counted.
 *
 * @param {Action} action @param {string[]} ids @param {() => void} after
 */
export async function changeSelected(action, ids, after) {
  const { done, effect, endpoint } = ACTIONS[action];
  const isConfirmed = await ask({
    title: `${phrase(action, format.plural(ids.length, "selected job"))}?`,
    action: phrase(action, format.plural(ids.length, "job")),
    dismiss: action === "cancel" ? `Keep the ${ids.length === 1 ? "job" : "jobs"}` : undefined,
    danger: action === "cancel",
    body: [
      h("p", null, effect),
      ids.length <= 5 &&
        h("p", { class: "command-line" }, h("code", null, command("jobs", ACTIONS[action].command, ...ids))),
    ],
  });
  if (!isConfirmed) return;
  let changed = 0;
  let skipped = 0;
  const rest = [...ids];
  const changeRest = async () => {
    for (let id = rest.shift(); id !== undefined; id = rest.shift()) {
      try {
        const answer = await change("POST", path("jobs", id, endpoint));
        if (answer?.changed === false) skipped += 1;
        else changed += 1;
      } catch (error) {
        if (!(error instanceof ApiError) || ![404, 409].includes(error.status)) throw error;
        skipped += 1;
      }
    }
  };
  try {
    await Promise.all(Array.from({ length: CONCURRENT_REQUESTS }, changeRest));
    toast(
      `${format.plural(changed, "job")} ${done}${skipped ? `; ${format.plural(skipped, "job")} skipped because of ${skipped === 1 ? "its" : "their"} state` : ""}`,
      changed ? "good" : "plain",
    );
  } catch (error) {
    const message = error instanceof Error ? error.message : error;
    toast(`${format.plural(changed, "job")} ${done}, then an error: ${message}`, "bad");
  }
  after();
}

/**
 * Count those of these jobs that can be changed, ask for confirmation, then change them in chunks, oldest first.
 *
 * @param {Action} action @param {string[]} ids @param {(isChanged: boolean) => void} after
 */
export async function changeListed(action, ids, after) {
  const { done, effect } = ACTIONS[action];
  let isChanged = false;
  try {
    const counted = await listedInChunks(action, ids, true, () => {});
    if (!counted.changed) {
      toast(`None of the jobs can be ${done}${refusals(counted)}`, "plain");
    } else {
      const jobs = format.plural(counted.changed, "job");
      const isConfirmed = await ask({
        title: `${phrase(action, jobs)}?`,
        action: phrase(action, jobs),
        dismiss: action === "cancel" ? "Keep the jobs" : undefined,
        danger: action === "cancel",
        body: [h("p", null, effect), refusedList(counted)],
      });
      if (!isConfirmed) return;
      const progress = progressToast(`0 of ${jobs} ${done} …`);
      try {
        const result = await listedInChunks(action, ids, false, (changed) => {
          isChanged = true;
          progress.update(`${format.count(changed)} of ${jobs} ${done} …`);
        });
        toast(`${format.plural(result.changed, "job")} ${done}${refusals(result)}`);
      } finally {
        progress.end();
      }
    }
  } catch (error) {
    toast(error instanceof Error ? error.message : String(error), "bad");
  }
  after(isChanged);
}

/**
 * @param {Action} action @param {string[]} ids @param {boolean} isDryRun @param {(changed: number) => void} onProgress
 * @returns {Promise<BulkResult>}
 */
async function listedInChunks(action, ids, isDryRun, onProgress) {
  const { done } = ACTIONS[action];
  /** @type {BulkResult} */
  const sum = { matched: 0, changed: 0, refused: {}, is_cut: false };
  // Ids are in the order in which jobs were enqueued, and a job is retried before those that follow it.
  const ordered = [...ids].sort();
  for (let at = 0; at < ordered.length; at += CHUNK) {
    const body = { action, ids: ordered.slice(at, at + CHUNK), most: CHUNK, dry_run: isDryRun };
    try {
      const chunk = await change("POST", "jobs/bulk", body);
      sum.matched += chunk.matched;
      sum.changed += chunk.changed;
      for (const [why, count] of /** @type {[string, number][]} */ (Object.entries(chunk.refused)))
        sum.refused[why] = (sum.refused[why] ?? 0) + count;
    } catch (error) {
      if (!sum.changed || isDryRun) throw error;
      const message = error instanceof Error ? error.message : String(error);
      throw new Error(`${format.plural(sum.changed, "job")} ${done}, then an error: ${message}`);
    }
    onProgress(sum.changed);
  }
  return sum;
}

/**
 * Change the counted jobs in chunks, and show the progress in a message.
 *
 * @param {Action} action @param {Record<string, string>} query @param {number} total
 * @returns {Promise<BulkResult>}
 */
async function inChunks(action, query, total) {
  const { done } = ACTIONS[action];
  const progress = progressToast(`0 of ${format.plural(total, "job")} ${done} …`);
  let changed = 0;
  try {
    for (;;) {
      const chunk = await bulk(action, query, Math.min(CHUNK, total - changed), false);
      changed += chunk.changed;
      if (!chunk.is_cut || !chunk.changed || changed >= total) return { ...chunk, changed };
      progress.update(`${format.count(changed)} of ${format.plural(total, "job")} ${done} …`);
    }
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    throw new Error(`${format.plural(changed, "job")} ${done}, then an error: ${message}`);
  } finally {
    progress.end();
  }
}

/**
 * @param {Action} action @param {Record<string, string>} query @param {number} maxJobs @param {boolean} isDryRun
 * @returns {Promise<BulkResult>}
 */
function bulk(action, query, maxJobs, isDryRun) {
  return change("POST", "jobs/bulk", { action, query, most: maxJobs, dry_run: isDryRun });
}

/** @param {BulkResult} result */
function refusals(result) {
  const refused = Object.entries(result.refused);
  return refused.length
    ? `; skipped: ${refused.map(([why, count]) => `${format.count(count)} (${why})`).join(", ")}`
    : "";
}

/** @param {BulkResult} result */
function refusedList(result) {
  const refused = Object.entries(result.refused);
  return (
    refused.length > 0 &&
    h(
      "ul",
      null,
      refused.map(([why, count]) => h("li", { key: why }, `${format.plural(count, "job")} skipped: ${why}`)),
    )
  );
}
