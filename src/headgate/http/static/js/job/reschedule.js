/** The form that gives waiting jobs another time, another priority, or both. */

import { change, messageOf, path } from "../api.js";
import { command, option } from "../commands.js";
import { ask } from "../dialogs.js";
import { h } from "../dom.js";
import { input, select, setter } from "../fields.js";
import * as format from "../format.js";
import { t } from "../language.js";
import { commandLine } from "../parts.js";
import { preferences } from "../prefs.js";
import { toast } from "../toasts.js";
import { isSent } from "./enqueue.js";

/** @typedef {{at?: string, priority?: number}} Place */
/** @typedef {{when: string, delay: string, time: string, priority: string, error: string}} Form */

const DELAY = /^(\d+(?:\.\d+)?)(s|m|h|d)$/;
/** Seconds. @type {Record<string, number>} */
const UNITS = { s: 1, m: 60, h: 3_600, d: 86_400 };

/**
 * Ask for the new time and priority of jobs. `submit` sends them, if it is given.
 *
 * @param {string} title @param {string} action @param {string[]} words the command's words for the jobs
 * @param {(place: Place) => Promise<void>} [submit] @param {string} [hint]
 * @returns {Promise<Place | null>}
 */
export async function askPlace(title, action, words, submit, hint = t("unchanged")) {
  /** @type {Form} */
  const form = { when: "", delay: "", time: "", priority: "", error: "" };
  const isDone = await ask({
    title,
    action,
    isReady: () => placeOf(form) !== null,
    body: h("p", null, t("The jobs keep their limits, attempts and unique keys. Among jobs of one key, a higher priority starts first.")),
    fields: (update) => {
      const set = setter(form, update);
      return [
        select(
          t("Start"),
          form.when,
          [
            ["", t("Keep the current time")],
            ["now", t("Now")],
            ["delay", t("After a delay")],
            ["time", t("At a set time")],
          ],
          set("when"),
        ),
        form.when === "delay" && input(t("Delay"), form.delay, "90s, 15m, 2h, 1d", set("delay")),
        form.when === "time" &&
          input(isUtc() ? t("Time (UTC)") : t("Time (local)"), form.time, "", set("time"), { type: "datetime-local", step: "1" }),
        input(t("New priority, 0 to 9"), form.priority, hint, set("priority"), { inputmode: "numeric" }),
        form.error && h("p", { class: "bad-text", role: "alert" }, form.error),
        commandLine(command("jobs", "reschedule", ...words, ...placeOptions(form))),
      ];
    },
    submit: submit && (() => isSent(form, () => submit(/** @type {Place} */ (placeOf(form))))),
  });
  return isDone ? placeOf(form) : null;
}

/** Reschedule the job of the page; its old time and priority can be restored. @param {import("../page.js").Context} context */
export async function reschedule(context) {
  const { status } = context.data.job;
  const { id } = status;
  const send = async (/** @type {Place} */ place) => {
    await change("POST", path("jobs", id, "reschedule"), place);
  };
  const place = await askPlace(t("Reschedule this job?"), t("Reschedule"), [id], send, t("now {present}", { present: status.priority }));
  if (!place) return;
  const undo = async () => {
    try {
      await send({ at: status.run_at, priority: status.priority });
      toast(t("The job has its old time and priority"));
    } catch (error) {
      toast(messageOf(error), "bad");
    }
    void context.refresh();
  };
  toast(t("The job is rescheduled"), "good", { label: t("Undo"), run: () => void undo() });
  void context.refresh();
}

function isUtc() {
  return preferences().zone === "utc";
}

/** The time and priority of a form; null if they are not complete. The time is absolute. @param {Form} form @returns {Place | null} */
function placeOf(form) {
  /** @type {Place} */
  const place = {};
  if (form.when) {
    const at = timeOf(form);
    if (at === null) return null;
    place.at = new Date(at).toISOString();
  }
  if (!/^\d?$/.test(form.priority)) return null;
  if (form.priority) place.priority = Number(form.priority);
  return form.when || form.priority ? place : null;
}

/** @param {Form} form @returns {number | null} */
function timeOf({ when, delay, time }) {
  if (when === "now") return format.now();
  if (when === "delay") {
    const [, count, unit] = DELAY.exec(delay) ?? [];
    return count ? format.now() + Number(count) * UNITS[unit] * 1_000 : null;
  }
  const at = Date.parse(isUtc() && time ? `${time}Z` : time);
  return Number.isNaN(at) ? null : at;
}

/** @param {Form} form */
function placeOptions(form) {
  const when = { "": [], now: ["--delay", "0"], delay: option("--delay", form.delay), time: atOption(form) }[form.when];
  return [...(when ?? []), ...option("--priority", form.priority)];
}

/** @param {Form} form */
function atOption(form) {
  const at = timeOf(form);
  return at === null ? [] : ["--at", new Date(at).toISOString()];
}
