/** The form that creates a schedule, or edits one that no code declares. */

import { change, get, messageOf, path } from "./api.js";
import { ask } from "./dialogs.js";
import { h } from "./dom.js";
import { input, select, setter } from "./fields.js";
import * as format from "./format.js";
import { ArgumentsForm, argumentsField, argumentsOf, argumentsText } from "./job/arguments.js";
import { isSent, tasksToChoose } from "./job/enqueue.js";
import { t } from "./language.js";
import { clock, countdown } from "./parts.js";
import { address, go } from "./router.js";
import { toast } from "./toasts.js";

/** @typedef {import("./page.js").Context} Context */

const KINDS = /** @type {[string, string][]} */ ([
  ["cron", t("Cron expression")],
  ["every", t("Period")],
  ["calendar", t("Calendar")],
]);
const KEPT = /** @type {[string, string]} */ (["kept", t("A trigger set in code, unchanged")]);

/** Milliseconds without a keystroke after which the next runs are read. */
const PAUSE = 250;

/** Create a schedule of a task that is chosen in the form. */
export async function createSchedule() {
  const tasks = await tasksToChoose();
  if (!tasks) return;
  const form = formOf(null, null);
  form.task = tasks[0].task;
  const written = new ArgumentsForm();
  const isDone = await ask({
    title: t("Create a schedule"),
    action: t("Create"),
    wide: true,
    fields: (update) => [
      field(form, "name", t("Name of the schedule"), "sync-acme", update, { autofocus: true }),
      select(
        t("Task of the schedule"),
        form.task,
        tasks.map((/** @type {any} */ each) => [each.task, each.task]),
        setter(form, update)("task"),
      ),
      fields(form, KINDS, update, written.view(form.task, update)),
    ],
    isReady: () => form.name.trim() !== "" && form.when.trim() !== "",
    submit: () =>
      isSent(form, async () => {
        form.refuse = (error) => written.refuse(error);
        const payload = written.read();
        await change("POST", "schedules", { ...bodyOf(form), name: form.name.trim(), task: form.task, payload });
      }),
  });
  form.preview.stop();
  if (!isDone) return;
  toast(t("Schedule {name} is stored", { name: form.name.trim() }));
  go(address(["schedules", form.name.trim()]));
}

/** Edit the schedule of the page. @param {Context} context */
export async function editSchedule(context) {
  const { schedule, definition } = context.data;
  const form = formOf(schedule, definition);
  const before = form.payload;
  const isDone = await ask({
    title: t("Edit schedule {name}", { name: schedule.name }),
    action: t("Save"),
    wide: true,
    body: h("p", null, t("The number of runs and a pause are kept. Jobs that it has enqueued do not change.")),
    fields: (update) =>
      fields(
        form,
        form.kind === "kept" || !triggerOf(definition) ? [KEPT, ...KINDS] : KINDS,
        update,
        argumentsField(form, update, before ? "" : t("Leave empty to keep the arguments. Some are hidden here; to change any, write all of them."), ""),
      ),
    isReady: () => form.kind === "kept" || form.when.trim() !== "",
    submit: () =>
      isSent(form, async () => {
        const payload = form.payload === before ? null : argumentsOf(form.payload);
        await change("POST", path("schedules", schedule.name, "edit"), { ...bodyOf(form), payload });
      }),
  });
  form.preview.stop();
  if (!isDone) return;
  toast(t("Schedule {name} is changed", { name: schedule.name }));
  void context.refresh();
}

/** @typedef {ReturnType<typeof formOf>} Form */

/** The kind of a trigger and its text; undefined for one of the code. @param {any} definition */
function triggerOf(definition) {
  return KINDS.map(([kind]) => [kind, definition[kind]]).find(([, text]) => text);
}

/** The texts of the form. @param {any} schedule null: a new one @param {any} definition */
function formOf(schedule, definition) {
  const [kind, when] = (definition && triggerOf(definition)) ?? [definition ? "kept" : "cron", ""];
  const tz = definition?.tz ?? Intl.DateTimeFormat().resolvedOptions().timeZone;
  return {
    name: "",
    /** The stored schedule; null for a new one. @type {string | null} */
    stored: schedule?.name ?? null,
    preview: new Preview(),
    task: "",
    kind,
    when,
    tz,
    opened: { kind, when, tz },
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
    /** @type {((error: unknown) => boolean) | undefined} */
    refuse: undefined,
  };
}

/** @param {Form} form @param {[string, string][]} kinds @param {() => void} update @param {import("./dom.js").Children} written the field of the arguments */
function fields(form, kinds, update, written) {
  const set = setter(form, update);
  return [
    select(t("Trigger"), form.kind, kinds, set("kind")),
    form.kind === "cron" && field(form, "when", t("Expression"), "0 6 * * mon-fri", update),
    form.kind === "every" && field(form, "when", t("Every"), "5m, 90s, 2h", update),
    form.kind === "calendar" && field(form, "when", t("Days and times"), "every 2 weeks on mon, wed at 9:00, 17:30", update),
    field(form, "tz", t("Time zone"), "UTC", update),
    nextRuns(form, update),
    field(form, "between", t("Only between"), "8:00 - 18:00", update),
    field(form, "on", t("Only on"), t("weekday, or mon, wed"), update),
    field(form, "exclude", t("Except on"), "12-25, 12-31..01-02, 2027-08-15", update),
    field(form, "jitter", t("Jitter in seconds"), t("none"), update, { inputmode: "decimal" }),
    field(form, "max_runs", t("Maximum runs"), t("never"), update, { inputmode: "numeric" }),
    select(
      t("Missed runs"),
      form.misfire,
      [
        ["run_once", t("run once")],
        ["skip", t("skip")],
        ["run_all", t("run all")],
      ],
      set("misfire"),
    ),
    select(
      t("Overlapping runs"),
      form.overlap,
      [
        ["skip", t("skip")],
        ["queue", t("queue them")],
        ["allow", t("allow")],
      ],
      set("overlap"),
    ),
    written,
    form.error && h("p", { class: "bad-text", role: "alert" }, form.error),
  ];
}

/** The next runs of a form, read from the server after each pause in typing. */
class Preview {
  #of = "";
  #timer = 0;
  #closed = new AbortController();
  /** @type {string[] | null} */
  runs = null;
  error = "";

  /** Read the runs if the form has changed. @param {Form} form @param {() => void} update */
  follow(form, update) {
    /** @type {Record<string, any>} */
    let query = {};
    let error = "";
    try {
      const { cron, every, calendar, tz, between, on, exclude, max_runs, until } = bodyOf(form);
      const lists = { between: between?.join("-"), on: on.join(","), exclude: exclude.join(",") };
      query = { schedule: form.stored, cron, every, calendar, tz, ...lists, max_runs, until };
    } catch (problem) {
      error = messageOf(problem);
    }
    const of = JSON.stringify([query, error]);
    if (of === this.#of) return;
    this.#of = of;
    clearTimeout(this.#timer);
    const show = (/** @type {string[] | null} */ runs, /** @type {string} */ why) => {
      if (this.#of !== of) return;
      this.runs = runs;
      this.error = why;
      update();
    };
    const isEmpty = form.kind !== "kept" && !form.when.trim();
    if (isEmpty || error) this.#timer = setTimeout(() => show(null, error));
    else
      this.#timer = setTimeout(
        () =>
          get("schedule-preview", query, this.#closed.signal).then(
            ({ next_runs, error: why }) => show(next_runs, why ?? ""),
            (problem) => show(null, problem.message),
          ),
        PAUSE,
      );
  }

  /** Read nothing more: the dialog is closed, and the schedule may be removed next. */
  stop() {
    clearTimeout(this.#timer);
    this.#of = "";
    this.#closed.abort();
  }
}

/** The next five runs of the form, or why there are none. @param {Form} form @param {() => void} update */
function nextRuns(form, update) {
  form.preview.follow(form, update);
  const { runs, error } = form.preview;
  const tz = form.tz.trim() || null;
  return h(
    "div",
    { class: "preview", key: "preview", role: "status", "aria-label": t("Next runs") },
    error
      ? h("p", { class: "bad-text", key: "error" }, error)
      : runs && [
          h("p", { class: "preview-title", key: "title" }, runs.length ? t("Next runs") : t("It never runs.")),
          h(
            "ol",
            { class: "next-runs", key: "runs" },
            runs.map((at) => {
              const own = format.inZone(at, tz, true);
              return h(
                "li",
                { key: at },
                h("span", null, h("span", { class: "num" }, clock(at)), own && h("span", { class: "cell-below faint num" }, own)),
                // A screen reader would say it each second.
                h("span", { class: "faint", "aria-hidden": "true" }, countdown(at)),
              );
            }),
          ),
        ],
  );
}

/** @param {any} form @param {string} name @param {string} label @param {string} placeholder @param {() => void} update */
function field(form, name, label, placeholder, update, props = {}) {
  return input(label, form[name], placeholder, setter(form, update)(name), props);
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
  if (between.length !== 0 && between.length !== 2) throw new Error(t('Only between: write two times, "8:00 - 18:00"'));
  const hasWindows = between.length > 0 || on.length > 0 || exclude.length > 0;
  const { opened } = form;
  // A trigger that nobody has changed is not sent: its text has neither the start of a period, nor a zone beside that
  // of the windows. A period needs a zone for its windows only.
  const isChanged = form.when !== opened.when || (form.tz !== opened.tz && form.kind !== "every");
  const kind = isChanged || form.kind !== opened.kind ? form.kind : "kept";
  return {
    cron: kind === "cron" ? form.when.trim() : null,
    every: kind === "every" ? form.when.trim() : null,
    calendar: kind === "calendar" ? form.when.trim() : null,
    tz: kind === "cron" || kind === "calendar" || hasWindows ? form.tz.trim() || "UTC" : null,
    between: between.length ? between : null,
    on,
    exclude,
    jitter: number(form.jitter, t("Jitter in seconds")),
    max_runs: number(form.max_runs, t("Maximum runs")),
    misfire: form.misfire,
    overlap: form.overlap,
    until: form.until,
  };
}

/** @param {string} text @param {string} label */
function number(text, label) {
  if (text === "") return null;
  if (!/^\d+(\.\d+)?$/.test(text)) throw new Error(t("{label}: {text} is not a number", { label, text }));
  return Number(text);
}
