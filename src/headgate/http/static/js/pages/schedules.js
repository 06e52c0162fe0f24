/** Schedules: the next and the last run of each, and problems. */

import { get, path } from "../api.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import { t, withElements, word } from "../language.js";
import { pager } from "../pager.js";
import * as format from "../format.js";
import { badge, button, copyCommand, countdown, effect, empty, heading, jobLink, link, notice, panel, when } from "../parts.js";
import { address, go } from "../router.js";
import { createSchedule, editSchedule } from "../schedule_form.js";
import { declared, table } from "../table.js";

/** @typedef {import("../page.js").Context} Context */

/** Milliseconds. */
const HOUR = 3_600_000;

/** @type {import("../page.js").PageDefinition} */
export const schedules = {
  title: () => t("Schedules"),
  every: 10_000,
  load: async ({ route }, signal) => {
    const after = route.query.get("after");
    const [page, day] = await Promise.all([
      get("schedules", { after, count: 100 }, signal),
      after ? null : get("schedule-day", {}, signal),
    ]);
    return { ...page, day };
  },
  view: (context) => {
    const { items, day } = context.data;
    return [
      heading(t("Schedules"), {
        actions: [
          button(t("Create"), { icon: "schedules", why: context.denied("operate") }, () => void createSchedule()),
          copyCommand(command("schedules", "list")),
        ],
      }),
      day?.items.length > 0 && dayPanel(day),
      panel(
        t("All schedules"),
        { class: "bare" },
        table({
          label: t("Schedules"),
          extra: "two-line",
          rows: items,
          key: (schedule) => schedule.name,
          tone: (schedule) => (schedule.state === "active" ? "" : "dim"),
          empty: empty(
            t("No schedules yet"),
            withElements("Put {decorator} above a task in your code, with {module}, or try the demo, which has a store of its own:", {
              decorator: h("code", null, '@app.schedule(Cron("0 3 * * *"), name="nightly")'),
              module: h("code", null, "from headgate import Cron"),
            }),
            command("demo"),
          ),
          columns: [
            ...declared("schedules", items, {
              name: (schedule) => [
                link(
                  address(["schedules", schedule.name]),
                  h("b", { class: "clamp", title: schedule.name }, schedule.name),
                ),
                h("span", { class: "cell-below faint" }, scheduledTasks(schedule)),
              ],
              state: {
                extra: "lead-cell",
                cell: (schedule) => [
                  scheduleState(schedule),
                  schedule.problem && h("span", { class: "cell-below warn-text" }, schedule.problem),
                ],
              },
              next_run: (schedule) => [
                countdown(schedule.next_run, schedule.state === "paused" ? t("paused") : t("none")),
                ownTime(schedule.next_run, schedule.tz),
              ],
              last_occurrence: {
                extra: "wide-cell",
                cell: (schedule) => [
                  when(schedule.last_occurrence, t("never")),
                  schedule.last_job && h("span", { class: "cell-below" }, jobLink(schedule.last_job)),
                  schedule.last_batch &&
                    h(
                      "span",
                      { class: "cell-below" },
                      link(address(["batches", schedule.last_batch]), t("batch {id}", { id: format.shortId(schedule.last_batch) })),
                    ),
                ],
              },
              runs: { extra: "wide-cell", cell: (schedule) => link(address(["jobs"], { schedule: schedule.name }), format.count(schedule.runs)) },
              open: { extra: "wide-cell" },
            }),
            {
              name: t("Actions"),
              align: "right",
              extra: "wide-cell",
              cell: (schedule) => h("span", { class: "row-actions" }, scheduleActions(context, schedule, true)),
            },
          ],
        }),
        pager(context, null, "after"),
      ),
    ];
  },
};

/** The next 24 hours: a row for each schedule, with a mark for each run. @param {any} day */
function dayPanel({ items, total, now, until }) {
  const [from, to] = [Date.parse(now), Date.parse(until)];
  const place = (/** @type {string | number} */ at) => `${((100 * (new Date(at).getTime() - from)) / (to - from)).toFixed(2)}%`;
  const hours = [];
  for (let at = Math.ceil(from / HOUR) * HOUR; at < to; at += HOUR) if (Number(format.hour(at).slice(0, 2)) % 3 === 0) hours.push(at);
  return panel(
    t("Next 24 hours"),
    { class: "day", hint: items.length < total ? t("{shown} of {count}", { shown: items.length, count: format.count(total) }) : null },
    h(
      "ul",
      null,
      items.map((/** @type {any} */ { name, runs, is_cut }) =>
        h(
          "li",
          { key: name },
          h("a", { href: address(["schedules", name]), class: "one-line", title: name }, name),
          h(
            "span",
            { class: "day-track", role: "img", "aria-label": dayLabel(runs, is_cut) },
            hours.map((at) => h("span", { key: `h${at}`, class: "day-hour", style: { left: place(at) } })),
            is_cut && h("span", { key: "cut", class: "day-often", style: { left: place(runs[0]) } }),
            !is_cut && runs.map((/** @type {string} */ at) => h("span", { key: at, class: "day-run", style: { left: place(at) }, title: format.clock(at) })),
          ),
        ),
      ),
    ),
    h(
      "p",
      { class: "day-hours num", "aria-hidden": "true" },
      h("span", { class: "day-track" }, hours.map((at) => h("span", { key: at, style: { left: place(at) } }, format.hour(at)))),
    ),
  );
}

/** When a schedule runs, in words. @param {string[]} runs @param {boolean} isCut */
function dayLabel(runs, isCut) {
  const interval = format.secondsBetween(runs[0], runs[1]);
  if (isCut) return t("more than {count} runs, the next at {time} and after {duration}", { count: runs.length, time: format.clock(runs[0]), duration: format.duration(interval) });
  return `${format.plural(runs.length, "run")}: ${runs.map((at) => format.clock(at)).join(", ")}`;
}

/** A time on the wall clock of the schedule's time zone, for below the same time in the preferred zone. @param {string | null} at @param {string | null} tz @param {boolean} [isFull] */
export function ownTime(at, tz, isFull = false) {
  const text = format.inZone(at, tz, isFull);
  return text && h("span", { class: "cell-below faint num" }, text);
}

/** @param {any} schedule */
export function scheduleState(schedule) {
  if (schedule.is_overdue) return badge("failed", t("overdue"));
  if (schedule.state === "active") return badge("alive", t("active"));
  return badge(schedule.state === "paused" ? "paused" : "succeeded", word(schedule.state));
}

/** @param {Context} context @param {any} schedule @param {boolean} isSmall */
export function scheduleActions(context, schedule, isSmall) {
  const { name } = schedule;
  const pause = { path: path("schedules", name, "pause"), done: t("Schedule {name} is paused", { name }) };
  const resume = { path: path("schedules", name, "resume"), done: t("Schedule {name} is resumed", { name }) };
  const why = context.denied("operate");
  const size = isSmall ? "small" : "";
  const body = (/** @type {string} */ verb, /** @type {string} */ text) => effect(text, command("schedules", verb, name));
  const toggle =
    schedule.state === "paused"
      ? button(
          t("Resume"),
          { icon: "ready", kind: `${size} primary`, why, name: t("Resume schedule {name}", { name }) },
          () =>
            void context.act({
              ...resume,
              undo: pause,
              question: {
                title: t("Resume schedule {name}?", { name }),
                action: t("Resume"),
                body: body("resume", t("The schedule continues with its next run. Runs missed during the pause are not made up.")),
              },
            }),
        )
      : schedule.state === "active" &&
        button(
          t("Pause"),
          { icon: "paused", kind: size, why, name: t("Pause schedule {name}", { name }) },
          () =>
            void context.act({
              ...pause,
              undo: resume,
              question: {
                title: t("Pause schedule {name}?", { name }),
                action: t("Pause the schedule"),
                body: body(
                  "pause",
                  t("The schedule enqueues no jobs until it is resumed. {jobs}.", { jobs: format.plural(schedule.open, "unfinished job continues", "unfinished jobs continue") }),
                ),
              },
            }),
        );
  return [
    button(
      t("Run now"),
      { icon: "bolt", kind: size, why, name: t("Run now: schedule {name}", { name }) },
      () =>
        void context.act({
          path: path("schedules", name, "trigger"),
          done: (response) => t("Job {id} is enqueued", { id: format.shortId(response.job ?? "") }),
          question: {
            title: t("Run schedule {name} now?", { name }),
            action: t("Run now"),
            body: body(
              "trigger",
              schedule.jobs === 1
                ? t("This enqueues a job of task {task}. The planned runs do not change. The limits of the task apply as usual.", { task: schedule.task })
                : t("This enqueues jobs of {tasks}. The planned runs do not change. The limits of the tasks apply as usual.", { tasks: scheduledTasks(schedule) }),
            ),
          },
        }),
    ),
    toggle,
  ];
}

/** @param {Context} context @param {any} schedule */
export function rareActions(context, schedule) {
  const { name } = schedule;
  return [
    schedule.state === "active" &&
      schedule.next_run &&
      button(
        t("Skip next"),
        { icon: "skip", why: context.denied("operate") },
        () =>
          void context.act({
            path: path("schedules", name, "skip"),
            done: t("The next run will be skipped"),
            question: {
              title: t("Skip the next run of {name}?", { name }),
              action: t("Skip the run"),
              body: h(
                "p",
                null,
                t("The run at {time} is skipped. Later runs do not change.", { time: format.instant(schedule.next_run) }),
              ),
            },
          }),
      ),
    context.data.definition &&
      button(
        t("Edit"),
        { why: schedule.is_declared ? t("The code declares this schedule: change it there") : context.denied("operate") },
        () => void editSchedule(context),
      ),
    button(
      t("Remove"),
      { icon: "close", kind: "danger-quiet", why: context.denied("operate") },
      () =>
        void context
          .act({
            method: "DELETE",
            path: path("schedules", name),
            done: t("Schedule {name} is removed", { name }),
            question: {
              title: t("Remove schedule {name}?", { name }),
              danger: true,
              action: t("Remove the schedule"),
              body: effect(
                t("The schedule enqueues no more jobs; jobs that it enqueued stay. If the code declares it, it is stored again when the next node starts: pause it instead."),
                command("schedules", "remove", name),
              ),
            },
          })
          .then((isRemoved) => isRemoved && go("schedules")),
    ),
  ];
}

/** @param {any} schedule */
export function problemNotice(schedule) {
  return schedule.problem && notice("warn", h("b", null, t("This schedule has a problem:")), " ", schedule.problem, ".");
}

/** The tasks of each occurrence: of one job, or of a chain or a batch. @param {any} schedule */
export function scheduledTasks(schedule) {
  if (schedule.jobs === 1) return schedule.task;
  return `${schedule.tasks.join(", ")} (${format.plural(schedule.jobs, "job")})`;
}
