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
import { address } from "../router.js";
import { table } from "../table.js";
import { ownTime, rareActions, scheduleActions, scheduleState, problemNotice } from "./schedules.js";

/** @type {import("../page.js").PageDefinition} */
export const schedule = {
  title: ({ params }) => `Schedule ${params.name}`,
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
        crumbs: [["Schedules", "schedules"]],
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
          "Jobs",
          {
            class: "bare",
            hint: format.plural(schedule.runs, "run"),
            aside: link(address(["jobs"], { schedule: schedule.name }), "All jobs"),
          },
          table({
            label: "Jobs of the schedule",
            rows: jobs,
            key: (job) => job.id,
            empty: empty(
              schedule.runs ? "No jobs in the store" : "No runs yet",
              schedule.next_run ? ["The next run is due ", countdown(schedule.next_run), "."] : "No run is planned.",
            ),
            columns: [
              { name: "Job", cell: (job) => jobLink(job.id) },
              { name: "State", cell: (job) => badge(jobState(job)) },
              { name: "Enqueued", align: "right", cell: (job) => when(job.enqueued_at) },
              {
                name: "Took",
                align: "right",
                cell: (job) =>
                  job.started_at && job.finished_at
                    ? format.duration((Date.parse(job.finished_at) - Date.parse(job.started_at)) / 1000)
                    : "–",
              },
            ],
          }),
        ),
        h(
          "div",
          { class: "stack" },
          panel(
            "Next runs",
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
                  schedule.state === "paused" ? "Paused" : "No next runs",
                  schedule.state === "paused" ? "The schedule does not run until it is resumed." : "The schedule has ended.",
                ),
          ),
          panel(
            "About",
            {},
            facts([
              ["Task", link(address(["jobs"], { task: schedule.task }), schedule.task)],
              ["Trigger", schedule.trigger],
              ...(schedule.tz ? [/** @type {[string, any]} */ (["Time zone", schedule.tz])] : []),
              ["Since", clock(schedule.started_at)],
              [
                "Last due",
                schedule.last_occurrence
                  ? [
                      clock(schedule.last_occurrence),
                      " · ",
                      when(schedule.last_occurrence),
                      ownTime(schedule.last_occurrence, schedule.tz, true),
                    ]
                  : "never",
              ],
              [
                "Runs",
                schedule.max_runs
                  ? `${format.count(schedule.runs)} of ${format.count(schedule.max_runs)}`
                  : format.count(schedule.runs),
              ],
              ["Unfinished", format.plural(schedule.open, "job")],
              ["Declared by", schedule.is_declared ? "the code" : "a user or a program"],
              ...(schedule.jitter ? [/** @type {[string, any]} */ (["Jitter", format.duration(schedule.jitter)])] : []),
              ["Missed runs", schedule.misfire.replaceAll("_", " ")],
              ["Overlapping runs", schedule.overlap.replaceAll("_", " ")],
              ...(schedule.until ? [/** @type {[string, any]} */ (["Until", clock(schedule.until)])] : []),
              ...(schedule.skipped
                ? [
                    /** @type {[string, any]} */ ([
                      "Last skipped run",
                      [`${schedule.skipped}, `, when(schedule.skipped_at)],
                    ]),
                  ]
                : []),
            ]),
          ),
          definition && panel("Arguments", {}, jsonView(definition.payload ?? {}, "Arguments")),
        ),
      ),
    ];
  },
};
