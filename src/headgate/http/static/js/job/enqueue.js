/** The forms that enqueue a job: another run of one, or a new job of a task. */

import { change, get, parseJson, path } from "../api.js";
import { command, option } from "../commands.js";
import { ask } from "../dialogs.js";
import { h } from "../dom.js";
import { area, input, select } from "../fields.js";
import * as format from "../format.js";
import { address, go } from "../router.js";
import { toast } from "../toasts.js";

/** @typedef {import("../page.js").Context} Context */
/** @typedef {{task: string, queue: string, arguments: string[], required: string[]}} DeclaredTask */

const HIDDEN = "[redacted]";

/** The field of a job's arguments, with the error below it. @param {{payload: string, error: string}} form @param {() => void} update @param {string} [placeholder] @param {string} [error] */
export function argumentsField(form, update, placeholder = "", error = form.error) {
  const changed = (/** @type {string} */ value) => {
    form.payload = value;
    form.error = "";
    update();
  };
  return area("Arguments (JSON)", form.payload, placeholder, changed, error);
}

/** Return the arguments of a text; those of an empty one are null. Throws an Error that says what to write. @param {string} text */
export function argumentsOf(text) {
  if (!text.trim()) return null;
  let value;
  try {
    value = parseJson(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${error instanceof Error ? error.message : error}`);
  }
  if (value === null || typeof value !== "object" || Array.isArray(value))
    throw new Error('Write an object of arguments by name: {"name": "value"}');
  return value;
}

/** The text of arguments for their field; empty if they or a part of them are hidden. @param {any} payload */
export function argumentsText(payload) {
  if (typeof payload !== "object") return "";
  const text = JSON.stringify(payload ?? {}, null, 2);
  return text.includes(HIDDEN) ? "" : text;
}

/** The text of a task's required arguments, each with the value null. @param {DeclaredTask | undefined} task */
export function requiredText(task) {
  return JSON.stringify(Object.fromEntries((task?.required ?? []).map((name) => [name, null])), null, 2);
}

/** Run what sends a form; the form then has its error. Returns whether it was sent. @param {{error: string}} form @param {() => Promise<void>} send */
export async function isSent(form, send) {
  try {
    form.error = "";
    await send();
    return true;
  } catch (error) {
    form.error = error instanceof Error ? error.message : String(error);
    return false;
  }
}

/** Enqueue a job like the one of the page, with the same or with other arguments. @param {Context} context */
export async function runAgain(context) {
  const { status, payload } = context.data.job;
  const before = argumentsText(payload);
  const form = { payload: before, error: "" };
  const isChanged = () => form.payload.trim() !== "" && form.payload !== before;
  let id = "";
  const isDone = await ask({
    title: "Run this job again?",
    action: "Run again",
    wide: true,
    body: h(
      "p",
      null,
      "This enqueues a new job with the task, queue, priority and options of this one, which stays as it is. The limits of the task apply as usual.",
    ),
    fields: (update) =>
      h(
        "div",
        { class: "dialog-fields" },
        argumentsField(form, update, before ? "" : "Empty: the same arguments. Some are hidden here: write all to change any."),
        h(
          "p",
          { class: "command-line" },
          h("code", null, command("jobs", "run-again", status.id, ...option("--payload", isChanged() ? form.payload : null))),
        ),
      ),
    submit: () =>
      isSent(form, async () => {
        const body = { payload: isChanged() ? argumentsOf(form.payload) : null };
        id = (await change("POST", path("jobs", status.id, "run-again"), body)).job;
      }),
  });
  if (isDone) openJob(id);
}

/** The tasks that the app declares; null after a message if there is none to choose. @returns {Promise<DeclaredTask[] | null>} */
export async function tasksToChoose() {
  /** @type {DeclaredTask[]} */
  let tasks;
  try {
    tasks = (await get("tasks")).items;
  } catch (error) {
    toast(error instanceof Error ? error.message : String(error), "bad");
    return null;
  }
  if (tasks.length) return tasks;
  toast("This app declares no task", "plain");
  return null;
}

/** Enqueue a job of a task that is chosen in the form. @param {string} [name] the task that is chosen at first */
export async function enqueueJob(name = "") {
  const tasks = await tasksToChoose();
  if (!tasks) return;
  const find = (/** @type {string} */ task) => tasks.find((each) => each.task === task);
  const first = find(name) ?? tasks[0];
  const form = { task: first.task, payload: requiredText(first), delay: "", priority: "", error: "" };
  let id = "";
  const isDone = await ask({
    title: "Enqueue a job",
    action: "Enqueue",
    wide: true,
    isReady: () => /^\d*(\.\d+)?$/.test(form.delay) && /^\d?$/.test(form.priority),
    fields: (update) => {
      const set = (/** @type {"delay" | "priority"} */ field) => (/** @type {string} */ value) => {
        form[field] = value;
        update();
      };
      return h(
        "div",
        { class: "dialog-fields" },
        select(
          "Task of the job",
          form.task,
          tasks.map((each) => [each.task, each.task]),
          (task) => {
            if (form.payload === requiredText(find(form.task))) form.payload = requiredText(find(task));
            form.task = task;
            form.error = "";
            update();
          },
        ),
        argumentsField(form, update),
        find(form.task)?.arguments.length
          ? h("p", { class: "faint" }, `Arguments of the task: ${find(form.task)?.arguments.join(", ")}`)
          : h("p", { class: "faint" }, "The task has no arguments."),
        input("Delay in seconds", form.delay, "none", set("delay"), { inputmode: "decimal" }),
        input("Priority of the job, 0 to 9", form.priority, "that of the task", set("priority"), { inputmode: "numeric" }),
        h(
          "p",
          { class: "command-line" },
          h(
            "code",
            null,
            command(
              "jobs",
              "enqueue",
              form.task,
              ...option("--payload", form.payload),
              ...option("--delay", form.delay),
              ...option("--priority", form.priority),
            ),
          ),
        ),
      );
    },
    submit: () =>
      isSent(form, async () => {
        const body = {
          payload: argumentsOf(form.payload) ?? {},
          ...(form.delay === "" ? {} : { delay: Number(form.delay) }),
          ...(form.priority === "" ? {} : { priority: Number(form.priority) }),
        };
        id = (await change("POST", path("tasks", form.task, "enqueue"), body)).job;
      }),
  });
  if (isDone) openJob(id);
}

/** @param {string} id */
function openJob(id) {
  toast(`Job ${format.shortId(id)} is enqueued`);
  go(address(["jobs", id]));
}
