/** Changing many jobs at once: counted first, then asked, then done in parts that can be watched. */

import { ApiError, change, path } from "./api.js";
import { command, filterOptions } from "./commands.js";
import { ask } from "./dialogs.js";
import { h } from "./dom.js";
import * as format from "./format.js";
import { lastingToast, toast } from "./toasts.js";

/** @typedef {"retry" | "cancel" | "run_now"} Action */
/** @typedef {{matched: number, changed: number, refused: Record<string, number>, is_cut: boolean}} BulkResult */

const MOST = 10_000;
/** Changed by one request. */
const PART = 1_000;
const AT_ONCE = 4;

/** What is said of each. @type {Record<Action, {verb: string, done: string, way: string, command: string, what: string}>} */
export const ACTIONS = {
  retry: {
    verb: "Retry",
    done: "retried",
    way: "retry",
    command: "retry",
    what: "They wait again, with all their tries. Jobs that neither failed nor were cancelled are left as they are.",
  },
  cancel: {
    verb: "Cancel",
    done: "cancelled",
    way: "cancel",
    command: "cancel",
    what: "Those that wait never run; those that run are asked to end. Jobs that are final are left as they are.",
  },
  run_now: {
    verb: "Run now",
    done: "made ready",
    way: "run-now",
    command: "run",
    what: "They are ready at once instead of at their time. No limit is passed by it.",
  },
};

/** The question about one verb and a number of jobs. @param {Action} action @param {string} count */
function question(action, count) {
  const { verb } = ACTIONS[action];
  return action === "run_now" ? `Run ${count} now?` : `${verb} ${count}?`;
}

/**
 * All that a filter matches: counts them, asks, changes them.
 *
 * @param {Action} action @param {Record<string, string>} filter as the API takes it @param {() => void} after
 */
export async function changeAll(action, filter, after) {
  const { done, what } = ACTIONS[action];
  try {
    // What is enqueued while somebody reads the question was not meant.
    const enqueued_before = new Date(format.now()).toISOString();
    const counted = await bulk(action, { enqueued_before, ...filter }, MOST, true);
    if (!counted.changed) {
      toast(`No job that the filter shows can be ${done}${refusals(counted)}`, "plain");
      return;
    }
    const many = `${counted.is_cut ? "the first " : ""}${format.plural(counted.changed, "job")}`;
    const isAll = !Object.keys(filter).length;
    const agreed = await ask({
      title: question(action, many),
      action:
        action === "run_now"
          ? `Run ${format.count(counted.changed)} now`
          : `${ACTIONS[action].verb} ${format.plural(counted.changed, "job")}`,
      danger: action === "cancel",
      body: [
        h("p", null, isAll ? h("b", null, "No filter is set: this is about all jobs of the store. ") : null, what),
        counted.is_cut &&
          h("p", null, `There are more; ${format.count(MOST)} are changed at a time. Do it again for those.`),
        refusedList(counted),
        h(
          "p",
          { class: "command-line" },
          h("code", null, command("jobs", ACTIONS[action].command, "--all", ...filterOptions(filter))),
        ),
      ],
    });
    if (!agreed) return;
    const result = await inParts(action, { enqueued_before, ...filter }, counted.changed);
    toast(`${format.plural(result.changed, "job")} ${done}${refusals(result)}`);
  } catch (error) {
    toast(error instanceof Error ? error.message : String(error), "bad");
  }
  after();
}

/**
 * The jobs that were chosen, one by one: what changes meanwhile is left, and counted.
 *
 * @param {Action} action @param {string[]} ids @param {() => void} after
 */
export async function changeChosen(action, ids, after) {
  const { verb, done, what, way } = ACTIONS[action];
  const count = format.plural(ids.length, "chosen job");
  const agreed = await ask({
    title: question(action, count),
    action: action === "run_now" ? `Run ${ids.length} now` : `${verb} ${format.plural(ids.length, "job")}`,
    danger: action === "cancel",
    body: [
      h("p", null, what),
      ids.length <= 5 &&
        h("p", { class: "command-line" }, h("code", null, command("jobs", ACTIONS[action].command, ...ids))),
    ],
  });
  if (!agreed) return;
  let changed = 0;
  let left = 0;
  const rest = [...ids];
  const work = async () => {
    for (let id = rest.shift(); id !== undefined; id = rest.shift()) {
      try {
        const answer = await change("POST", path("jobs", id, way));
        if (answer?.changed === false) left += 1;
        else changed += 1;
      } catch (error) {
        if (!(error instanceof ApiError) || ![404, 409].includes(error.status)) throw error;
        left += 1;
      }
    }
  };
  try {
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    toast(
      `${format.plural(changed, "job")} ${done}${left ? `; ${format.count(left)} left as they are, as their state does not allow it` : ""}`,
      changed ? "good" : "plain",
    );
  } catch (error) {
    toast(`${format.count(changed)} ${done}, then: ${error instanceof Error ? error.message : error}`, "bad");
  }
  after();
}

/**
 * Change what was counted, so many at a time that each answer comes soon, and tell how far it is.
 *
 * @param {Action} action @param {Record<string, string>} query @param {number} total
 * @returns {Promise<BulkResult>}
 */
async function inParts(action, query, total) {
  const { done } = ACTIONS[action];
  const told = lastingToast(`0 of ${format.plural(total, "job")} ${done} …`);
  let changed = 0;
  try {
    for (;;) {
      const part = await bulk(action, query, Math.min(PART, total - changed), false);
      changed += part.changed;
      if (!part.is_cut || !part.changed || changed >= total) return { ...part, changed };
      told.tell(`${format.count(changed)} of ${format.plural(total, "job")} ${done} …`);
    }
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new Error(`${format.plural(changed, "job")} ${done}, then: ${why}`);
  } finally {
    told.end();
  }
}

/**
 * @param {Action} action @param {Record<string, string>} query @param {number} most @param {boolean} isDryRun
 * @returns {Promise<BulkResult>}
 */
function bulk(action, query, most, isDryRun) {
  return change("POST", "jobs/bulk", { action, query, most, dry_run: isDryRun });
}

/** @param {BulkResult} result */
function refusals(result) {
  const refused = Object.entries(result.refused);
  return refused.length
    ? `; left as they are: ${refused.map(([why, many]) => `${format.count(many)} (${why})`).join(", ")}`
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
      refused.map(([why, many]) => h("li", { key: why }, `${format.plural(many, "job")} left as they are: ${why}`)),
    )
  );
}
