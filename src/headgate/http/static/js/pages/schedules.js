/** Schedules: the next and the last run of each, and problems. */

import { get, path } from "../api.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import { pager } from "../pager.js";
import * as format from "../format.js";
import { badge, button, copyCommand, countdown, empty, heading, jobLink, link, notice, panel, when } from "../parts.js";
import { address, go } from "../router.js";
import { createSchedule, editSchedule } from "../schedule_form.js";
import { table } from "../table.js";

/** @typedef {import("../page.js").Context} Context */

/** @type {import("../page.js").PageDefinition} */
export const schedules = {
  title: () => "Schedules",
  every: 10_000,
  load: ({ route }, signal) => get("schedules", { after: route.query.get("after"), count: 100 }, signal),
  view: (context) => {
    const { items } = context.data;
    return [
      heading("Schedules", {
        actions: [
          button("Create", { icon: "schedules", why: context.denied("operate") }, () => void createSchedule()),
          copyCommand(command("schedules", "list")),
        ],
      }),
      panel(
        "All schedules",
        { class: "bare" },
        table({
          label: "Schedules",
          rows: items,
          key: (schedule) => schedule.name,
          tone: (schedule) => (schedule.state === "active" ? "" : "dim"),
          empty: empty(
            "No schedules yet",
            [
              "Put ",
              h("code", null, '@app.schedule(Cron("0 3 * * *"), name="nightly")'),
              " above a task in your code, with ",
              h("code", null, "from headgate import Cron"),
              ", or try the demo:",
            ],
            command("demo"),
          ),
          columns: [
            {
              name: "Schedule",
              cell: (schedule) => [
                link(
                  address(["schedules", schedule.name]),
                  h("b", { class: "clamp", title: schedule.name }, schedule.name),
                ),
                h("span", { class: "cell-below faint" }, schedule.task),
              ],
            },
            {
              name: "State",
              cell: (schedule) => [
                scheduleState(schedule),
                schedule.problem && h("span", { class: "cell-below warn-text" }, schedule.problem),
              ],
            },
            { name: "Trigger", cell: (schedule) => schedule.trigger },
            {
              name: "Next run",
              align: "right",
              cell: (schedule) => [
                countdown(schedule.next_run, schedule.state === "paused" ? "paused" : "none"),
                ownTime(schedule.next_run, schedule.tz),
              ],
            },
            {
              name: "Last run",
              align: "right",
              cell: (schedule) => [
                when(schedule.last_occurrence, "never"),
                schedule.last_job && h("span", { class: "cell-below" }, jobLink(schedule.last_job)),
              ],
            },
            {
              name: "Runs",
              align: "right",
              cell: (schedule) => link(address(["jobs"], { schedule: schedule.name }), format.count(schedule.runs)),
            },
            { name: "Unfinished", align: "right", cell: (schedule) => format.count(schedule.open) },
            {
              name: "Actions",
              align: "right",
              cell: (schedule) => h("span", { class: "row-actions" }, scheduleActions(context, schedule, true)),
            },
          ],
        }),
        pager(context, null, "after"),
      ),
    ];
  },
};

/** A time on the wall clock of the schedule's time zone, for below the same time in the preferred zone. @param {string | null} at @param {string | null} tz @param {boolean} [isFull] */
export function ownTime(at, tz, isFull = false) {
  const text = format.inZone(at, tz, isFull);
  return text && h("span", { class: "cell-below faint num" }, text);
}

/** @param {any} schedule */
export function scheduleState(schedule) {
  if (schedule.is_overdue) return badge("failed", "overdue");
  if (schedule.state === "active") return badge("alive", "active");
  return badge(schedule.state === "paused" ? "paused" : "succeeded", schedule.state);
}

/** @param {Context} context @param {any} schedule @param {boolean} isSmall */
export function scheduleActions(context, schedule, isSmall) {
  const { name } = schedule;
  const why = context.denied("operate");
  const size = isSmall ? "small" : "";
  const body = (/** @type {string} */ verb, /** @type {string} */ text) => [
    h("p", null, text),
    h("p", { class: "command-line" }, h("code", null, command("schedules", verb, name))),
  ];
  const toggle =
    schedule.state === "paused"
      ? button(
          "Resume",
          { icon: "ready", kind: `${size} primary`, why, name: `Resume schedule ${name}` },
          () =>
            void context.act({
              path: path("schedules", name, "resume"),
              done: `Schedule ${name} is resumed`,
              question: {
                title: `Resume schedule ${name}?`,
                action: "Resume",
                body: body("resume", "The schedule continues with its next run. Runs missed during the pause are not made up."),
              },
            }),
        )
      : schedule.state === "active" &&
        button(
          "Pause",
          { icon: "paused", kind: size, why, name: `Pause schedule ${name}` },
          () =>
            void context.act({
              path: path("schedules", name, "pause"),
              done: `Schedule ${name} is paused`,
              question: {
                title: `Pause schedule ${name}?`,
                action: "Pause the schedule",
                body: body(
                  "pause",
                  `The schedule enqueues no jobs until it is resumed. ${format.plural(schedule.open, "unfinished job continues", "unfinished jobs continue")}.`,
                ),
              },
            }),
        );
  return [
    button(
      "Run now",
      { icon: "bolt", kind: size, why, name: `Run now: schedule ${name}` },
      () =>
        void context.act({
          path: path("schedules", name, "trigger"),
          done: (response) => `Job ${format.shortId(response.job ?? "")} is enqueued`,
          question: {
            title: `Run schedule ${name} now?`,
            action: "Run now",
            body: body(
              "trigger",
              `This enqueues a job of task ${schedule.task}. The planned runs do not change. The limits of the task apply as usual.`,
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
        "Skip next",
        { icon: "skip", why: context.denied("operate") },
        () =>
          void context.act({
            path: path("schedules", name, "skip"),
            done: "The next run will be skipped",
            question: {
              title: `Skip the next run of ${name}?`,
              action: "Skip the run",
              body: h(
                "p",
                null,
                `The run at ${format.instant(schedule.next_run)} is skipped. Later runs do not change.`,
              ),
            },
          }),
      ),
    context.data.definition &&
      button(
        "Edit",
        { why: schedule.is_declared ? "The code declares this schedule: change it there" : context.denied("operate") },
        () => void editSchedule(context),
      ),
    button(
      "Remove",
      { icon: "close", kind: "danger-quiet", why: context.denied("operate") },
      () =>
        void context
          .act({
            method: "DELETE",
            path: path("schedules", name),
            done: `Schedule ${name} is removed`,
            question: {
              title: `Remove schedule ${name}?`,
              danger: true,
              action: "Remove the schedule",
              body: [
                h(
                  "p",
                  null,
                  "The schedule enqueues no more jobs; jobs that it enqueued stay. If the code declares it, it is stored again when the next node starts: pause it instead.",
                ),
                h("p", { class: "command-line" }, h("code", null, command("schedules", "remove", name))),
              ],
            },
          })
          .then((isRemoved) => isRemoved && go("schedules")),
    ),
  ];
}

/** @param {any} schedule */
export function problemNotice(schedule) {
  return schedule.problem && notice("warn", h("b", null, "This schedule has a problem: "), schedule.problem, ".");
}
