/** Change many jobs: count them, ask for confirmation, then change them in chunks and show the progress. */

import { ApiError, change, messageOf, path } from "./api.js";
import { command, filterOptions } from "./commands.js";
import { ask } from "./dialogs.js";
import { h } from "./dom.js";
import * as format from "./format.js";
import { askPlace } from "./job/reschedule.js";
import { t, word } from "./language.js";
import { commandLine } from "./parts.js";
import { progressToast, toast } from "./toasts.js";

/** @typedef {"retry" | "cancel" | "run_now" | "reschedule" | "delete"} Action */
/** @typedef {{matched: number, changed: number, refused: Record<string, number>, is_cut: boolean}} BulkResult */

const MAX_JOBS = 10_000;
/** Jobs changed by one request. */
const CHUNK = 1_000;
const CONCURRENT_REQUESTS = 4;

/** The texts, endpoint and command of each action. @type {Record<Action, {verb: string, done: string, endpoint: string, command: string, effect: string, needs?: "admin"}>} */
export const ACTIONS = {
  retry: {
    verb: t("Retry"),
    done: t("retried"),
    endpoint: "retry",
    command: "retry",
    effect: t("The jobs wait again, with all their attempts. Only failed and cancelled jobs are retried."),
  },
  cancel: {
    verb: t("Cancel"),
    done: t("cancelled"),
    endpoint: "cancel",
    command: "cancel",
    effect: t("Waiting jobs will not run. Running jobs are asked to stop. Finished jobs do not change."),
  },
  run_now: {
    verb: t("Run now"),
    done: t("made ready"),
    endpoint: "run-now",
    command: "run",
    effect: t("The jobs become ready now instead of at their scheduled time. Their limits still apply."),
  },
  reschedule: {
    verb: t("Reschedule"),
    done: t("rescheduled"),
    endpoint: "reschedule",
    command: "reschedule",
    effect: t("The jobs get the new time and priority. Jobs that have them already are not counted. Their limits still apply."),
  },
  delete: {
    verb: t("Delete"),
    done: t("deleted"),
    endpoint: "",
    command: "delete",
    effect:
      t("The jobs are deleted for good, with their results, attempts and log lines. Finished jobs that an unfinished job follows are kept."),
    needs: "admin",
  },
};

/** The action with its object: "Cancel 5 jobs", "Run 5 jobs now". @param {Action} action @param {string} jobs */
export function phrase(action, jobs) {
  if (action === "run_now") return t("Run {jobs} now", { jobs });
  if (action === "reschedule") return t("Reschedule {jobs}", { jobs });
  if (action === "delete") return t("Delete {jobs}", { jobs });
  return action === "retry" ? t("Retry {jobs}", { jobs }) : t("Cancel {jobs}", { jobs });
}

/** Whether an action cannot be undone, or stops jobs. @param {Action} action */
function isDangerous(action) {
  return action === "cancel" || action === "delete";
}

/**
 * Count the jobs that match a filter, ask for confirmation, then change them.
 *
 * @param {Action} action @param {Record<string, string>} filter as the API takes it @param {() => void} after
 */
export async function changeMatching(action, filter, after) {
  const words = [ACTIONS[action].command, "--all", ...filterOptions(filter)];
  const place = action === "reschedule" ? await askPlace(t("Reschedule the matching jobs"), t("Count the jobs"), words.slice(1)) : {};
  if (!place) return;
  // Leave out jobs that are enqueued while the dialog is open.
  const query = { enqueued_before: new Date(format.now()).toISOString(), ...filter };
  const isAll = !Object.keys(filter).length;
  await countAndChange({
    action,
    request: (maxJobs, isDryRun) => bulk(action, query, maxJobs, isDryRun, place),
    effect: [isAll ? [h("b", null, t("No filter is set: this applies to all jobs in the store.")), " "] : null, ACTIONS[action].effect],
    command: action === "reschedule" ? null : command("jobs", ...words),
    after,
  });
}

/**
 * Count the jobs that are cancelled with a batch, ask for confirmation, then cancel them.
 *
 * @param {string} id @param {() => void} after
 */
export async function cancelBatch(id, after) {
  await countAndChange({
    action: "cancel",
    request: (maxJobs, isDryRun) => change("POST", path("batches", id, "cancel"), { most: maxJobs, dry_run: isDryRun }),
    effect: [
      t("The jobs of the batch, of the batches in it, and the steps after it that wait for nothing else."),
      " ",
      ACTIONS.cancel.effect,
    ],
    command: command("batches", "cancel", id),
    after,
  });
}

/** Count the waiting jobs of a queue, ask for confirmation, then cancel them. @param {string} queue @param {() => void} after */
export async function purgeQueue(queue, after) {
  const cancelled = { queue, state: "cancelled", finished_after: new Date(format.now()).toISOString() };
  await countAndChange({
    action: "cancel",
    request: (maxJobs, isDryRun) => change("POST", path("queues", queue, "purge"), { most: maxJobs, dry_run: isDryRun }),
    title: t("Purge queue {name}?", { name: queue }),
    effect: [
      t("These jobs will not run. Running jobs continue."),
      " ",
      t("Cancelled jobs are kept for their retention time and can be retried; scheduled ones are then due immediately."),
    ],
    command: command("queues", "purge", queue),
    follow: { label: t("Retry them …"), run: () => void changeMatching("retry", cancelled, after) },
    after,
  });
}

/**
 * Count jobs, ask for confirmation, then change them. A `title` of its own does not have the number of jobs, so the text has it.
 *
 * @param {{
 *   action: Action, request: (maxJobs: number, isDryRun: boolean) => Promise<BulkResult>,
 *   title?: string, effect: import("./dom.js").Children, command: string | null,
 *   follow?: import("./toasts.js").ToastAction, after: () => void,
 * }} how
 */
async function countAndChange({ action, request, title, effect, command, follow, after }) {
  const { done } = ACTIONS[action];
  try {
    const counted = await request(MAX_JOBS, true);
    if (!counted.changed) {
      toast(t("No matching job can be {done}", { done }) + refusals(counted), "plain");
      return;
    }
    const jobs = format.plural(counted.changed, "job");
    const isConfirmed = await ask({
      title: title ?? `${phrase(action, counted.is_cut ? t("the first {jobs}", { jobs }) : jobs)}?`,
      action: phrase(action, jobs),
      dismiss: isDangerous(action) ? t("Keep the jobs") : undefined,
      danger: isDangerous(action),
      body: [
        h("p", null, title && [`${format.plural(counted.changed, "job is cancelled", "jobs are cancelled")}. `], effect),
        counted.is_cut &&
          h("p", null, t("More jobs match. One action changes up to {count} jobs; repeat it for the rest.", { count: format.count(MAX_JOBS) })),
        refusedList(counted),
        command !== null && commandLine(command),
      ],
    });
    if (!isConfirmed) return;
    const result = await inChunks(action, (maxJobs) => request(maxJobs, false), counted.changed);
    toast(changedText(result.changed, done) + refusals(result), "good", follow);
  } catch (error) {
    toast(messageOf(error), "bad");
  }
  after();
}

/** @typedef {{action: Action, total: number, request: (maxJobs: number) => Promise<BulkResult>}} Counted */

/** Count the jobs that match a filter and can be changed. @param {Action} action @param {Record<string, string>} filter @returns {Promise<Counted>} */
export async function countMatching(action, filter) {
  // Leave out jobs that are enqueued before the change is confirmed.
  const query = { enqueued_before: new Date(format.now()).toISOString(), ...filter };
  const { changed: total } = await bulk(action, query, MAX_JOBS, true, {});
  return { action, total, request: (maxJobs) => bulk(action, query, maxJobs, false, {}) };
}

/** Change the counted jobs, and show the result in a message. @param {Counted} counted @param {() => void} after */
export async function changeCounted({ action, total, request }, after) {
  try {
    const result = await inChunks(action, request, total);
    toast(changedText(result.changed, ACTIONS[action].done) + refusals(result));
  } catch (error) {
    toast(messageOf(error), "bad");
  }
  after();
}

/**
 * Change the selected jobs one by one; jobs whose state no longer allows it are skipped and counted.
 *
 * @param {Action} action @param {string[]} ids @param {() => void} after
 */
export async function changeSelected(action, ids, after) {
  // These take many ids at once.
  if (action === "reschedule" || action === "delete") return changeListed(action, ids, after);
  const { done, effect, endpoint } = ACTIONS[action];
  const isConfirmed = await ask({
    title: `${phrase(action, format.plural(ids.length, "selected job"))}?`,
    action: phrase(action, format.plural(ids.length, "job")),
    dismiss: action !== "cancel" ? undefined : ids.length === 1 ? t("Keep the job") : t("Keep the jobs"),
    danger: action === "cancel",
    body: [
      h("p", null, effect),
      ids.length <= 5 && commandLine(command("jobs", ACTIONS[action].command, ...ids)),
    ],
  });
  if (!isConfirmed) return;
  let changed = 0;
  let skipped = 0;
  /** @type {unknown} */
  let failure;
  const rest = [...ids];
  const changeRest = async () => {
    for (let id = rest.shift(); id !== undefined; id = rest.shift()) {
      try {
        const answer = await change("POST", path("jobs", id, endpoint));
        if (answer?.changed === false) skipped += 1;
        else changed += 1;
      } catch (error) {
        if (error instanceof ApiError && [404, 409].includes(error.status)) skipped += 1;
        else {
          failure ??= error;
          // The others end, too, after the request that they have sent: what the message says is all that was changed.
          rest.length = 0;
        }
      }
    }
  };
  await Promise.all(Array.from({ length: CONCURRENT_REQUESTS }, changeRest));
  if (failure === undefined) {
    toast(
      changedText(changed, done) + (skipped ? `; ${t("skipped because of their state: {jobs}", { jobs: format.plural(skipped, "job") })}` : ""),
      changed ? "good" : "plain",
    );
  } else {
    toast(t("{changes}, then an error: {message}", { changes: changedText(changed, done), message: messageOf(failure) }), "bad");
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
  const words = ids.length <= 5 ? ids : ["…"];
  const place = action === "reschedule" ? await askPlace(t("Reschedule the selected jobs"), t("Count the jobs"), words) : {};
  if (!place) return;
  let isChanged = false;
  try {
    const counted = await listedInChunks(action, ids, true, () => {}, place);
    if (!counted.changed) {
      toast(t("None of the jobs can be {done}", { done }) + refusals(counted), "plain");
    } else {
      const jobs = format.plural(counted.changed, "job");
      const isConfirmed = await ask({
        title: `${phrase(action, jobs)}?`,
        action: phrase(action, jobs),
        dismiss: isDangerous(action) ? t("Keep the jobs") : undefined,
        danger: isDangerous(action),
        body: [h("p", null, effect), refusedList(counted)],
      });
      if (!isConfirmed) return;
      const progress = progressToast(progressText(0, counted.changed, done));
      try {
        const onProgress = (/** @type {number} */ changed) => {
          isChanged = true;
          progress.update(progressText(changed, counted.changed, done));
        };
        const result = await listedInChunks(action, ids, false, onProgress, place);
        toast(changedText(result.changed, done) + refusals(result));
      } finally {
        progress.end();
      }
    }
  } catch (error) {
    toast(messageOf(error), "bad");
  }
  after(isChanged);
}

/**
 * @param {Action} action @param {string[]} ids @param {boolean} isDryRun @param {(changed: number) => void} onProgress
 * @param {import("./job/reschedule.js").Place} place
 * @returns {Promise<BulkResult>}
 */
async function listedInChunks(action, ids, isDryRun, onProgress, place) {
  const { done } = ACTIONS[action];
  /** @type {BulkResult} */
  const sum = { matched: 0, changed: 0, refused: {}, is_cut: false };
  // Ids are in the order in which jobs were enqueued, and a job is retried before those that follow it.
  const ordered = [...ids].sort();
  for (let at = 0; at < ordered.length; at += CHUNK) {
    const body = { ids: ordered.slice(at, at + CHUNK), most: CHUNK, dry_run: isDryRun, ...place };
    try {
      const chunk = await send(action, body);
      sum.matched += chunk.matched;
      sum.changed += chunk.changed;
      for (const [why, count] of /** @type {[string, number][]} */ (Object.entries(chunk.refused)))
        sum.refused[why] = (sum.refused[why] ?? 0) + count;
    } catch (error) {
      if (!sum.changed || isDryRun) throw error;
      throw new Error(t("{changes}, then an error: {message}", { changes: changedText(sum.changed, done), message: messageOf(error) }));
    }
    onProgress(sum.changed);
  }
  return sum;
}

/**
 * Change the counted jobs in chunks, and show the progress in a message.
 *
 * @param {Action} action @param {(maxJobs: number) => Promise<BulkResult>} request @param {number} total
 * @returns {Promise<BulkResult>}
 */
async function inChunks(action, request, total) {
  const { done } = ACTIONS[action];
  const progress = progressToast(progressText(0, total, done));
  let changed = 0;
  try {
    for (;;) {
      const chunk = await request(Math.min(CHUNK, total - changed));
      changed += chunk.changed;
      if (!chunk.is_cut || !chunk.changed || changed >= total) return { ...chunk, changed };
      progress.update(progressText(changed, total, done));
    }
  } catch (error) {
    throw new Error(t("{changes}, then an error: {message}", { changes: changedText(changed, done), message: messageOf(error) }));
  } finally {
    progress.end();
  }
}

/**
 * @param {Action} action @param {Record<string, string>} query @param {number} maxJobs @param {boolean} isDryRun
 * @param {import("./job/reschedule.js").Place} place
 * @returns {Promise<BulkResult>}
 */
function bulk(action, query, maxJobs, isDryRun, place) {
  return send(action, { query, most: maxJobs, dry_run: isDryRun, ...place });
}

/** @param {Action} action @param {object} body @returns {Promise<BulkResult>} */
async function send(action, body) {
  return action === "delete" ? change("POST", "jobs/purge", body) : change("POST", "jobs/bulk", { action, ...body });
}

/** "5 jobs retried". @param {number} count @param {string} done */
function changedText(count, done) {
  return t("{jobs} {done}", { jobs: format.plural(count, "job"), done });
}

/** "3 of 5 jobs retried …". @param {number} count @param {number} total @param {string} done */
function progressText(count, total, done) {
  return t("{count} of {jobs} {done} …", { count: format.count(count), jobs: format.plural(total, "job"), done });
}

/** @param {BulkResult} result */
function refusals(result) {
  const refused = Object.entries(result.refused);
  return refused.length
    ? `; ${t("skipped: {counts}", { counts: refused.map(([why, count]) => `${format.count(count)} (${word(why)})`).join(", ") })}`
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
      refused.map(([why, count]) => h("li", { key: why }, t("{jobs} skipped: {reason}", { jobs: format.plural(count, "job"), reason: word(why) }))),
    )
  );
}
