/** One schedule: its trigger, its next runs and the jobs it enqueued. */

import { get, path } from "../api.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { jsonView } from "../json.js";
import {
  badge,
  clock,
  copyCommand,
  countdown,
  empty,
  facts,
  heading,
  jobLink,
  jobState,
  link,
  panel,
  when,
} from "../parts.js";
import { t, withElements, word } from "../language.js";
import { address } from "../router.js";
import { table } from "../table.js";
import { ownTime, rareActions, scheduledTasks, scheduleActions, scheduleState, problemNotice } from "./schedules.js";

/** @type {import("../page.js").PageDefinition} */
export const schedule = {
  title: ({ params }) => t("Schedule {name}", { name: params.name }),
  every: 5_000,
  load: async ({ route }, signal) => {
    const { name } = route.params;
    const [found, jobs] = await Promise.all([
      get(path("schedules", name), {}, signal),
      get("jobs", { schedule: name, count: 10 }, signal),
    ]);
    return { schedule: found.status, next: found.next_runs, definition: found.definition, jobs: jobs.items };
  },
  view: (context) => {
    const { schedule, next, jobs, definition } = context.data;
    return [
      heading(schedule.name, {
        crumbs: [[t("Schedules"), "schedules"]],
        badges: scheduleState(schedule),
        actions: [
          scheduleActions(context, schedule, false),
          rareActions(context, schedule),
          copyCommand(command("schedules", "next", schedule.name)),
        ],
      }),
      problemNotice(schedule),
      h(
        "div",
        { class: "two wide-left", key: "body" },
        panel(
          t("Jobs"),
          {
            class: "bare",
            hint: format.plural(schedule.runs, "run"),
            aside: link(address(["jobs"], { schedule: schedule.name }), t("All jobs")),
          },
          table({
            label: t("Jobs of the schedule"),
            rows: jobs,
            key: (job) => job.id,
            empty: empty(
              schedule.runs ? t("No jobs in the store") : t("No runs yet"),
              schedule.next_run ? withElements("The next run is due {time}.", { time: countdown(schedule.next_run) }) : t("No run is planned."),
            ),
            columns: [
              { name: t("Job"), cell: (job) => jobLink(job.id) },
              { name: t("State"), cell: (job) => badge(jobState(job)) },
              { name: t("Enqueued"), align: "right", cell: (job) => when(job.enqueued_at) },
              {
                name: t("Duration"),
                align: "right",
                cell: (job) => format.duration(format.secondsBetween(job.started_at, job.finished_at)),
              },
            ],
          }),
        ),
        h(
          "div",
          { class: "stack" },
          panel(
            t("Next runs"),
            {},
            next.length
              ? h(
                  "ol",
                  { class: "next-runs" },
                  next.map((/** @type {string} */ at) =>
                    h(
                      "li",
                      { key: at },
                      h("span", null, h("span", { class: "num" }, clock(at)), ownTime(at, schedule.tz, true)),
                      h("span", { class: "faint" }, countdown(at)),
                    ),
                  ),
                )
              : empty(
                  schedule.state === "paused" ? t("Paused") : t("No next runs"),
                  schedule.state === "paused" ? t("The schedule does not run until it is resumed.") : t("The schedule has ended."),
                ),
          ),
          panel(
            t("About"),
            {},
            facts([
              schedule.jobs === 1
                ? [t("Task"), link(address(["jobs"], { task: schedule.task }), schedule.task)]
                : [t("Tasks"), scheduledTasks(schedule)],
              [t("Trigger"), schedule.trigger],
              schedule.tz && [t("Time zone"), schedule.tz],
              [t("Since"), clock(schedule.started_at)],
              [
                t("Last due"),
                schedule.last_occurrence
                  ? [
                      clock(schedule.last_occurrence),
                      " · ",
                      when(schedule.last_occurrence),
                      ownTime(schedule.last_occurrence, schedule.tz, true),
                    ]
                  : t("never"),
              ],
              [
                t("Runs"),
                schedule.max_runs
                  ? t("{runs} of {max_runs}", { runs: format.count(schedule.runs), max_runs: format.count(schedule.max_runs) })
                  : format.count(schedule.runs),
              ],
              [t("Unfinished"), format.plural(schedule.open, "job")],
              [t("Declared by"), schedule.is_declared ? t("the code") : t("a user or a program")],
              schedule.jitter && [t("Jitter"), format.duration(schedule.jitter)],
              [t("Missed runs"), word(schedule.misfire.replaceAll("_", " "))],
              [t("Overlapping runs"), schedule.overlap === "queue" ? t("queue them") : word(schedule.overlap)],
              schedule.until && [t("Until"), clock(schedule.until)],
              schedule.skips && [t("Skipped runs"), format.count(schedule.skips)],
              schedule.skipped && [t("Last skipped run"), [`${word(schedule.skipped.replaceAll("_", " "))}, `, when(schedule.skipped_at)]],
            ]),
          ),
          definition && schedule.jobs === 1 && panel(t("Arguments"), {}, jsonView(definition.payload ?? {}, t("Arguments"))),
        ),
      ),
    ];
  },
};
