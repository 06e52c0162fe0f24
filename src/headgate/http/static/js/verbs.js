/** Verbs that are typed into the search box: "pause acme", "penalize acme 60", "retry TimeoutError", "run now 06qg…". */

import { get, path } from "./api.js";
import { ACTIONS, changeCounted, countMatching, phrase } from "./bulk.js";
import { command, filterOptions, option } from "./commands.js";
import * as format from "./format.js";
import { t, word } from "./language.js";
import { keysOf, pausing } from "./limits/actions.js";
import * as live from "./live.js";
import { queueChange } from "./queue_toggle.js";

/** @typedef {import("./page.js").Context} Context */
/** @typedef {"pause" | "resume" | "penalize" | "retry" | "cancel" | "run now"} Verb */

/**
 * A verb and the text after it. `seconds` are those of `penalize`.
 *
 * @typedef {{verb: Verb, object: string, seconds: number}} TypedVerb
 */

/**
 * Something that a verb does: `preview` says what, to how many, and which command does the same. It throws if it cannot
 * be done. An action that needs what the preview has read is in the preview.
 *
 * @typedef {{name: string, detail?: string, preview: () => Promise<Preview>, act?: () => void}} VerbAction
 * @typedef {{text: string, command: string, act?: () => void}} Preview
 */

/** @type {Verb[]} */
export const VERBS = ["pause", "resume", "penalize", "retry", "cancel", "run now"];

/** Seconds of a penalty if none are typed. */
const PENALTY = 60;
const TYPED = new RegExp(`^\\s*(${VERBS.join("|")})\\s+(\\S.*?)\\s*$`, "i");

/** The verb that a text begins with, and its object; null without one. @param {string} text @returns {TypedVerb | null} */
export function parseVerb(text) {
  const [, verb, rest] = TYPED.exec(text) ?? [];
  if (!verb) return null;
  const typed = { verb: /** @type {Verb} */ (verb.toLowerCase()), object: rest, seconds: PENALTY };
  const [, object, seconds] = /^(.*\S)\s+(\d+(?:\.\d+)?)$/.exec(rest) ?? [];
  return typed.verb === "penalize" && object ? { ...typed, object, seconds: Number(seconds) } : typed;
}

/**
 * What a verb can do to what the API has found, and to the failed jobs with these filters.
 *
 * @param {Context} context @param {TypedVerb} typed @param {any[]} found @param {Record<string, string>} filters
 * @returns {VerbAction[]}
 */
export function verbActions(context, typed, found, filters) {
  const actions = found.map((each) => verbAction(context, typed, each)).filter((each) => each !== null);
  return typed.verb === "retry" && Object.keys(filters).length ? [...actions, retryFailed(context, filters)] : actions;
}

/** @param {Context} context @param {TypedVerb} typed @param {any} found @returns {VerbAction | null} */
function verbAction(context, { verb, seconds }, { kind, name, limit, detail }) {
  if (verb === "pause" || verb === "resume") {
    if (kind === "queue") return toggleQueue(context, verb, name);
    if (kind === "limit") return toggleLimit(context, verb, name, null);
    if (kind === "key") return toggleLimit(context, verb, limit, name);
  } else if (verb === "penalize") {
    if (kind === "key") return penalize(context, limit, name, seconds);
  } else if (kind === "job") return changeJob(context, verb, name, detail);
  return null;
}

/** @param {Context} context @param {"pause" | "resume"} verb @param {string} name @returns {VerbAction} */
function toggleQueue(context, verb, name) {
  const isPause = verb === "pause";
  return {
    name: isPause ? t("Pause queue {name}", { name }) : t("Resume queue {name}", { name }),
    preview: async () => {
      requirePermission(context, "operate");
      const { queue } = await get(path("queues", name));
      const waiting = format.plural(queue?.waiting ?? 0, "job waits.", "jobs wait.");
      const effect = isPause ? t("No job of this queue starts on any node until the queue is resumed.") : t("The waiting jobs start as slots are free.");
      return { text: `${effect} ${waiting}`, command: command("queues", verb, name) };
    },
    act: () => void context.act({ ...queueChange(name, verb), undo: queueChange(name, isPause ? "resume" : "pause") }),
  };
}

/** @param {Context} context @param {"pause" | "resume"} verb @param {string} limit @param {string | null} key @returns {VerbAction} */
function toggleLimit(context, verb, limit, key) {
  const isPause = verb === "pause";
  const names = { name: limit, keys: keysOf(key) };
  return {
    name: isPause ? t("Pause {name} for {keys}", names) : t("Resume {name} for {keys}", names),
    preview: async () => {
      requirePermission(context, "admin");
      const effect = isPause ? t("No job starts under this limit until it is resumed. Running jobs continue. Waiting jobs keep their positions.") : t("Waiting jobs start as the rule allows.");
      return { text: `${effect} ${await waitingOn(limit, key)}`, command: command("limits", verb, limit, ...option("--key", key)) };
    },
    act: () => void context.act({ ...pausing(limit, key, verb), undo: pausing(limit, key, isPause ? "resume" : "pause") }),
  };
}

/** @param {Context} context @param {string} limit @param {string} key @param {number} seconds @returns {VerbAction} */
function penalize(context, limit, key, seconds) {
  const names = { key: format.keyName(key), name: limit, duration: format.duration(seconds) };
  return {
    name: t("Penalize key {key} of {name} for {duration}", names),
    preview: async () => {
      requirePermission(context, "admin");
      const until = t("No job of this key starts until {time}.", { time: format.clock(format.now() + seconds * 1000) });
      const words = command("limits", "penalize", limit, String(seconds), ...option("--key", key));
      return { text: `${until} ${await waitingOn(limit, key)}`, command: words };
    },
    act: () =>
      void context.act({
        path: path("limits", limit, "penalize"),
        body: { key, seconds },
        done: t("Key {key} of {name} is penalized for {duration}", names),
      }),
  };
}

/** How many jobs wait for a limit, or for one of its keys. @param {string} limit @param {string | null} key */
async function waitingOn(limit, key) {
  const jobs =
    key === null
      ? live.current().overview?.limits?.find((/** @type {any} */ each) => each.limit === limit)?.waiting
      : (await get(path("limits", limit, "bucket"), { key })).waiting;
  return format.plural(jobs ?? 0, "job waits.", "jobs wait.");
}

/** @param {Context} context @param {"retry" | "cancel" | "run now"} verb @param {string} id @param {string} task @returns {VerbAction} */
function changeJob(context, verb, id, task) {
  const { effect, command: name, endpoint } = ACTIONS[actionOf(verb)];
  const done = { retry: t("The job is waiting again"), cancel: t("The cancellation is requested"), "run now": t("The job is ready") };
  return {
    name: phrase(actionOf(verb), t("job {id}", { id: format.shortId(id) })),
    detail: task,
    preview: async () => {
      requirePermission(context, "operate");
      const { status } = await get(path("jobs", id));
      const state = t("1 job, now {state}.", { state: word(status.state) });
      return { text: `${state} ${effect}`, command: command("jobs", name, id) };
    },
    act: () => void context.act({ path: path("jobs", id, endpoint), done: done[verb] }),
  };
}

/** Retry the failed jobs that match. @param {Context} context @param {Record<string, string>} filters @returns {VerbAction} */
function retryFailed(context, filters) {
  const filter = { state: "failed", ...filters };
  const words = Object.entries(filters).map(([name, value]) => `${name} ${value}`);
  return {
    name: t("Retry the failed jobs"),
    detail: words.join(", "),
    preview: async () => {
      requirePermission(context, "operate");
      const counted = await countMatching("retry", filter);
      if (!counted.total) throw new Error(t("No matching job can be {done}", { done: ACTIONS.retry.done }));
      return {
        text: `${phrase("retry", format.plural(counted.total, "job"))}. ${ACTIONS.retry.effect}`,
        command: command("jobs", "retry", "--all", ...filterOptions(filter)),
        act: () => void changeCounted(counted, () => void context.refresh()),
      };
    },
  };
}

/** @param {"retry" | "cancel" | "run now"} verb */
function actionOf(verb) {
  return verb === "run now" ? "run_now" : verb;
}

/** Throw the reason why this user may not do it. @param {Context} context @param {"operate" | "admin"} permission */
function requirePermission(context, permission) {
  const why = context.denied(permission);
  if (why) throw new Error(why);
}
