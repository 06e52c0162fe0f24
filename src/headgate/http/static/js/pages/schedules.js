/** Schedules: when each is due next, what its last run came to, and whether somebody fires it. */

import { get, path } from "../api.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import { pager } from "../pager.js";
import * as format from "../format.js";
import { badge, button, copyCommand, countdown, empty, heading, jobLink, link, notice, panel, when } from "../parts.js";
import { address, go } from "../router.js";
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
      heading("Schedules", { actions: copyCommand(command("schedules", "list")) }),
      panel(
        "All schedules",
        { class: "bare" },
        table({
          label: "Schedules",
          rows: items,
          key: (schedule) => schedule.name,
          tone: (schedule) => (schedule.state === "active" ? "" : "dim"),
          empty: empty(
            "No schedule yet",
            [
              "Declare one in your code: ",
              h("code", null, 'task.schedule("nightly", cron="0 3 * * *")'),
              ", or see those of the demonstration:",
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
                schedule.trouble && h("span", { class: "cell-below warn-text" }, schedule.trouble),
              ],
            },
            { name: "Rhythm", cell: (schedule) => schedule.trigger },
            {
              name: "Next run",
              align: "right",
              cell: (schedule) => countdown(schedule.next_run, schedule.state === "paused" ? "paused" : "none"),
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
            { name: "Open", align: "right", cell: (schedule) => format.count(schedule.open) },
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
  const told = (/** @type {string} */ way, /** @type {string} */ text) => [
    h("p", null, text),
    h("p", { class: "command-line" }, h("code", null, command("schedules", way, name))),
  ];
  const toggle =
    schedule.state === "paused"
      ? button(
          "Resume",
          { icon: "ready", kind: `${size} primary`, why, name: `Resume schedule ${name}` },
          () =>
            void context.act({
              path: path("schedules", name, "resume"),
              done: `Schedule ${name} goes on`,
              question: {
                title: `Resume schedule ${name}?`,
                action: "Resume",
                body: told("resume", "It goes on with its next occurrence; those of the pause are not made up for."),
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
                body: told(
                  "pause",
                  `Nothing of it is enqueued until somebody resumes it. ${format.plural(schedule.open, "job")} of it that ${schedule.open === 1 ? "waits or runs goes" : "wait or run go"} on.`,
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
          done: (answer) => `A job of ${name} is enqueued: ${format.shortId(answer.job ?? "")}`,
          question: {
            title: `Run schedule ${name} now?`,
            action: "Enqueue its job",
            body: told(
              "trigger",
              `A job of task ${schedule.task} is enqueued now. Its rhythm stays, and its limits count for the job as for any other.`,
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
            done: "The next run is left out",
            question: {
              title: `Skip the next run of ${name}?`,
              action: "Skip it",
              body: h(
                "p",
                null,
                `The run of ${format.instant(schedule.next_run)} is left out; the one after it comes as it should.`,
              ),
            },
          }),
      ),
    button(
      "Remove",
      { icon: "close", kind: "danger-quiet", why: context.denied("admin") },
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
                  "Nothing of it is enqueued any more; jobs that it has enqueued stay. One that the code declares is there again when the next node starts: pause it instead.",
                ),
                h("p", { class: "command-line" }, h("code", null, command("schedules", "remove", name))),
              ],
            },
          })
          .then((isDone) => isDone && go("schedules")),
    ),
  ];
}

/** @param {any} schedule */
export function troubleNotice(schedule) {
  return schedule.trouble && notice("warn", h("b", null, "This schedule is in trouble: "), schedule.trouble, ".");
}
