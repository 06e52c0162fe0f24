/** The forms that enqueue a job: another run of one, or a new job of a task. */

import { change, get, messageOf, path } from "../api.js";
import { command, oneLine, option } from "../commands.js";
import { ask } from "../dialogs.js";
import { h } from "../dom.js";
import { input, select, setter } from "../fields.js";
import * as format from "../format.js";
import { t } from "../language.js";
import { commandLine } from "../parts.js";
import { address, go } from "../router.js";
import { toast } from "../toasts.js";
import { ArgumentsForm, argumentsField, argumentsOf, argumentsText } from "./arguments.js";

/** @typedef {import("../page.js").Context} Context */
/** @typedef {{task: string, queue: string}} DeclaredTask */

/** @typedef {{id: string, is_new: boolean}} EnqueuedJob */

/**
 * Run what sends a form; the form then has its error, unless its fields have it. Returns whether it was sent.
 *
 * @param {{error: string, refuse?: (error: unknown) => boolean}} form @param {() => Promise<void>} send
 */
export async function isSent(form, send) {
  try {
    form.error = "";
    await send();
    return true;
  } catch (error) {
    if (!form.refuse?.(error)) form.error = messageOf(error);
    return false;
  }
}

/** Enqueue a job like the one of the page, with the same or with other arguments. @param {Context} context */
export async function runAgain(context) {
  const { status, payload } = context.data.job;
  const before = argumentsText(payload);
  const form = { payload: before, error: "" };
  const isChanged = () => form.payload.trim() !== "" && form.payload !== before;
  /** @type {EnqueuedJob | null} */
  let answer = null;
  const isDone = await ask({
    title: t("Run this job again?"),
    action: t("Run again"),
    wide: true,
    body: h(
      "p",
      null,
      t("This enqueues a new job with the task, queue, priority and options of this one, which stays as it is. The limits of the task apply as usual."),
    ),
    fields: (update) => [
      argumentsField(form, update, before ? "" : t("Leave empty to keep the arguments. Some are hidden here; to change any, write all of them.")),
      commandLine(command("jobs", "run-again", status.id, ...option("--payload", isChanged() ? oneLine(form.payload) : null))),
    ],
    submit: () =>
      isSent(form, async () => {
        const body = { payload: isChanged() ? argumentsOf(form.payload) : null };
        answer = await change("POST", path("jobs", status.id, "run-again"), body);
      }),
  });
  if (isDone && answer) openJob(answer);
}

/** The tasks that the app declares; null after a message if there is none to choose. @returns {Promise<DeclaredTask[] | null>} */
export async function tasksToChoose() {
  /** @type {DeclaredTask[]} */
  let tasks;
  try {
    tasks = (await get("tasks")).items;
  } catch (error) {
    toast(messageOf(error), "bad");
    return null;
  }
  if (tasks.length) return tasks;
  toast(t("This app declares no task"), "plain");
  return null;
}

/** Enqueue a job of a task that is chosen in the form. @param {string} [name] the task that is chosen at first */
export async function enqueueJob(name = "") {
  const tasks = await tasksToChoose();
  if (!tasks) return;
  const first = tasks.find((each) => each.task === name) ?? tasks[0];
  const fields = new ArgumentsForm();
  const form = {
    task: first.task, delay: "", priority: "",
    tags: "", unique_key: "", expires_in: "", retention: "",
  };
  /** @type {EnqueuedJob | null} */
  let answer = null;
  const isDone = await ask({
    title: t("Enqueue a job"),
    action: t("Enqueue"),
    wide: true,
    isReady: () => /^\d*(\.\d+)?$/.test(form.delay) && /^\d?$/.test(form.priority),
    fields: (update) => {
      const set = setter(form, update);
      return [
        select(
          t("Task of the job"),
          form.task,
          tasks.map((each) => [each.task, each.task]),
          (task) => {
            form.task = task;
            fields.error = "";
            update();
          },
        ),
        fields.view(form.task, update),
        input(t("Delay in seconds"), form.delay, t("none"), set("delay"), { inputmode: "decimal" }),
        input(t("Priority of the job, 0 to 9"), form.priority, t("the task's priority"), set("priority"), { inputmode: "numeric" }),
        h(
          "details",
          { class: "more-options", key: "more" },
          h("summary", null, t("More options")),
          h(
            "div",
            { class: "dialog-fields" },
            input(t("Tags of the job, separated by commas"), form.tags, t("only those of the task"), set("tags")),
            input(t("Unique key of the job"), form.unique_key, t("that of the task"), set("unique_key")),
            input(t("Expires in, for example 10m or 2h"), form.expires_in, t("that of the task"), set("expires_in")),
            input(t("Retention: 1h, 0, or forever"), form.retention, t("that of the task"), set("retention")),
          ),
        ),
        commandLine(
          command(
            "jobs",
            "enqueue",
            form.task,
            ...option("--payload", oneLine(fields.text)),
            ...option("--delay", form.delay),
            ...option("--priority", form.priority),
            ...tagsOf(form.tags).flatMap((tag) => option("--tag", tag)),
            ...option("--unique-key", form.unique_key),
            ...option("--expires-in", form.expires_in),
            ...option("--retention", form.retention),
          ),
        ),
      ];
    },
    submit: () =>
      isSent(fields, async () => {
        const body = {
          payload: fields.read(),
          ...(form.delay === "" ? {} : { delay: Number(form.delay) }),
          ...(form.priority === "" ? {} : { priority: Number(form.priority) }),
          ...(tagsOf(form.tags).length ? { tags: tagsOf(form.tags) } : {}),
          ...(form.unique_key === "" ? {} : { unique_key: form.unique_key }),
          ...(form.expires_in === "" ? {} : { expires_in: form.expires_in }),
          ...(form.retention === "" ? {} : { retention: form.retention }),
        };
        answer = await change("POST", path("tasks", form.task, "enqueue"), body);
      }),
  });
  if (isDone && answer) openJob(answer);
}

/** @param {string} text */
function tagsOf(text) {
  return text.split(/[\s,]+/).filter(Boolean);
}

/** @param {EnqueuedJob} answer */
function openJob(answer) {
  const id = format.shortId(answer.id);
  if (answer.is_new) toast(t("Job {id} is enqueued", { id }));
  else toast(t("No new job was enqueued: job {id} already has this unique key", { id }), "plain");
  go(address(["jobs", answer.id]));
}
