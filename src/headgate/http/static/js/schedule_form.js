/** The form that creates a schedule, or edits one that no code declares. */

import { change, path } from "./api.js";
import { ask } from "./dialogs.js";
import { h } from "./dom.js";
import { input, select } from "./fields.js";
import { argumentsField, argumentsOf, argumentsText, isSent, requiredText, tasksToChoose } from "./job/enqueue.js";
import { address, go } from "./router.js";
import { toast } from "./toasts.js";

/** @typedef {import("./page.js").Context} Context */

const KINDS = /** @type {[string, string][]} */ ([
  ["cron", "Cron expression"],
  ["every", "Period"],
]);
const KEPT = /** @type {[string, string]} */ (["kept", "Calendar, as it is"]);

/** Create a schedule of a task that is chosen in the form. */
export async function createSchedule() {
  const tasks = await tasksToChoose();
  if (!tasks) return;
  const form = formOf(null, null);
  form.task = tasks[0].task;
  form.payload = requiredText(tasks[0]);
  const isDone = await ask({
    title: "Create a schedule",
    action: "Create",
    wide: true,
    fields: (update) =>
      h(
        "div",
        { class: "dialog-fields" },
        field(form, "name", "Name of the schedule", "sync-acme", update, { autofocus: true }),
        select(
          "Task of the schedule",
          form.task,
          tasks.map((/** @type {any} */ each) => [each.task, each.task]),
          (task) => {
            const find = (/** @type {string} */ name) => tasks.find((/** @type {any} */ each) => each.task === name);
            if (form.payload === requiredText(find(form.task))) form.payload = requiredText(find(task));
            form.task = task;
            update();
          },
        ),
        fields(form, KINDS, update),
      ),
    isReady: () => form.name.trim() !== "" && form.when.trim() !== "",
    submit: () =>
      isSent(form, async () => {
        const payload = argumentsOf(form.payload) ?? {};
        await change("POST", "schedules", { ...bodyOf(form), name: form.name.trim(), task: form.task, payload });
      }),
  });
  if (!isDone) return;
  toast(`Schedule ${form.name.trim()} is stored`);
  go(address(["schedules", form.name.trim()]));
}

/** Edit the schedule of the page. @param {Context} context */
export async function editSchedule(context) {
  const { schedule, definition } = context.data;
  const form = formOf(schedule, definition);
  const before = form.payload;
  const isDone = await ask({
    title: `Edit schedule ${schedule.name}`,
    action: "Save",
    wide: true,
    body: h("p", null, "The number of runs and a pause stay. Jobs that it has enqueued do not change."),
    fields: (update) =>
      h(
        "div",
        { class: "dialog-fields" },
        fields(
          form,
          form.kind === "kept" || (!definition.cron && !definition.every) ? [KEPT, ...KINDS] : KINDS,
          update,
          before ? "" : "Empty: the same arguments. Some are hidden here: write all to change any.",
        ),
      ),
    isReady: () => form.kind === "kept" || form.when.trim() !== "",
    submit: () =>
      isSent(form, async () => {
        const payload = form.payload === before ? null : argumentsOf(form.payload);
        await change("POST", path("schedules", schedule.name, "edit"), { ...bodyOf(form), payload });
      }),
  });
  if (!isDone) return;
  toast(`Schedule ${schedule.name} is changed`);
  void context.refresh();
}

/** @typedef {ReturnType<typeof formOf>} Form */

/** The texts of the form. @param {any} schedule null: a new one @param {any} definition */
function formOf(schedule, definition) {
  return {
    name: "",
    task: "",
    kind: !definition || definition.cron ? "cron" : definition.every ? "every" : "kept",
    when: definition?.cron ?? definition?.every ?? "",
    tz: definition?.tz ?? "UTC",
    payload: definition ? argumentsText(definition.payload) : "{}",
    between: definition?.between?.join(" - ") ?? "",
    on: definition?.on.join(", ") ?? "",
    exclude: definition?.exclude.join(", ") ?? "",
    jitter: schedule?.jitter ? String(schedule.jitter) : "",
    misfire: schedule?.misfire ?? "run_once",
    overlap: schedule?.overlap ?? "skip",
    max_runs: schedule?.max_runs ? String(schedule.max_runs) : "",
    until: schedule?.until ?? null,
    error: "",
  };
}

/** @param {Form} form @param {[string, string][]} kinds @param {() => void} update @param {string} [placeholder] */
function fields(form, kinds, update, placeholder) {
  const set = (/** @type {"kind" | "misfire" | "overlap"} */ name) => (/** @type {string} */ value) => {
    form[name] = value;
    form.error = "";
    update();
  };
  return [
    select("Runs by", form.kind, kinds, set("kind")),
    form.kind === "cron" && field(form, "when", "Expression", "0 6 * * mon-fri", update),
    form.kind === "every" && field(form, "when", "Every", "5m, 90s, 2h", update),
    field(form, "tz", "Zone of the schedule", "UTC", update),
    field(form, "between", "Only between", "8:00 - 18:00", update),
    field(form, "on", "Only on", "weekday, or mon, wed", update),
    field(form, "exclude", "Not on", "12-25, 12-31..01-02, 2027-08-15", update),
    field(form, "jitter", "Jitter in seconds", "none", update, { inputmode: "decimal" }),
    field(form, "max_runs", "Ends after so many runs", "never", update, { inputmode: "numeric" }),
    select(
      "Missed runs",
      form.misfire,
      [
        ["run_once", "run once"],
        ["skip", "skip"],
        ["run_all", "run all"],
      ],
      set("misfire"),
    ),
    select(
      "Overlapping runs",
      form.overlap,
      [
        ["skip", "skip"],
        ["queue", "queue"],
        ["allow", "allow"],
      ],
      set("overlap"),
    ),
    argumentsField(form, update, placeholder, ""),
    form.error && h("p", { class: "bad-text", role: "alert" }, form.error),
  ];
}

/** @param {any} form @param {string} name @param {string} label @param {string} placeholder @param {() => void} update */
function field(form, name, label, placeholder, update, props = {}) {
  const changed = (/** @type {string} */ value) => {
    form[name] = value;
    form.error = "";
    update();
  };
  return input(label, form[name], placeholder, changed, props);
}

/** The form as the API takes it. Throws an Error for a number that is none. @param {Form} form */
function bodyOf(form) {
  const words = (/** @type {string} */ text, /** @type {RegExp} */ separator) =>
    text
      .split(separator)
      .map((word) => word.trim())
      .filter(Boolean);
  const between = words(form.between, /-/);
  const [on, exclude] = [words(form.on, /,/), words(form.exclude, /,/)];
  if (between.length !== 0 && between.length !== 2) throw new Error('Only between: write two times, "8:00 - 18:00"');
  const hasWindows = between.length > 0 || on.length > 0 || exclude.length > 0;
  return {
    cron: form.kind === "cron" ? form.when.trim() : null,
    every: form.kind === "every" ? form.when.trim() : null,
    // A period needs a zone for its windows only.
    tz: form.kind === "cron" || hasWindows ? form.tz.trim() || "UTC" : null,
    between: between.length ? between : null,
    on,
    exclude,
    jitter: number(form.jitter, "Jitter in seconds"),
    max_runs: number(form.max_runs, "Ends after so many runs"),
    misfire: form.misfire,
    overlap: form.overlap,
    until: form.until,
  };
}

/** @param {string} text @param {string} label */
function number(text, label) {
  if (text === "") return null;
  if (!/^\d+(\.\d+)?$/.test(text)) throw new Error(`${label}: ${text} is not a number`);
  return Number(text);
}
