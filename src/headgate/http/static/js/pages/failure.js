/** The failures of one root cause: the newest error, and the jobs, which can be retried together. */

import { get, messageOf, path } from "../api.js";
import { changeListed } from "../bulk.js";
import { chartPanel, deployMarks } from "../charts.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { icon } from "../icons.js";
import { causeView } from "../job/cause.js";
import { t, withElements } from "../language.js";
import { badge, button, copyButton, copyCommand, facts, heading, jobLink, jobState, link, moment, notice, panel, when } from "../parts.js";
import { address, currentRoute, go } from "../router.js";
import { table } from "../table.js";
import { toast } from "../toasts.js";
import { recurrenceBadge, spanOf, trendLabel } from "./failures.js";

/** @typedef {import("../page.js").Context} Context */

/** How many jobs are listed. */
const LISTED = 100;
/** How many jobs are read to retry them: all that the API names. */
const MAX_JOBS = 10_000;
/** Milliseconds between two looks at the job that was retried alone. */
const TRIAL_INTERVAL = 1_000;
const FINAL = ["succeeded", "failed", "cancelled", "skipped"];

/** @type {import("../page.js").PageDefinition} */
export const failure = {
  title: () => t("Failure"),
  every: 15_000,
  usesStream: true,
  isFrozen: (context) => context.isListInUse,
  ui: () => ({ trial: null }),
  load: ({ route }, signal) => get(path("failures", route.params.id), { span: spanOf(route).span, jobs: LISTED }, signal),
  view: (context) => {
    const { data, route } = context;
    const { group } = data;
    return [
      heading(group.cause.type, {
        crumbs: [
          [t("Failures"), address(["failures"], { span: route.query.get("span") })],
          [group.task, address(["jobs"], { task: group.task, state: "failed" })],
        ],
        badges: recurrenceBadge(group),
        actions: [retryOneButton(context), retryButton(context), copyCommand(command("failures", ...spanOf(route).options, "--task", group.task))],
      }),
      data.is_cut &&
        h(
          "div",
          { class: "notices", key: "notices" },
          notice("info", t("There may be more failures: only the newest 10,000 were read.")),
        ),
      trialNotice(context),
      h(
        "div",
        { class: "two wide-left", key: "body" },
        h("div", { class: "stack", key: "left" }, causePanel(group), trend(data), jobList(data)),
        h("div", { class: "stack", key: "right" }, about(group)),
      ),
    ];
  },
};

/** The button that retries one job of several, to see if the cause is gone. @param {Context} context */
function retryOneButton(context) {
  const { group, jobs } = context.data;
  // The job in the address stands for the group: it has to stay failed.
  const others = jobs.filter((/** @type {any} */ job) => !job.is_retrying && job.id !== context.route.params.id);
  if (group.failed < 2 || !others.length) return null;
  return button(t("Retry one"), { icon: "retry", why: context.denied("operate") }, () => void retryOne(context, others[0].id));
}

/** @param {Context} context @param {string} id */
async function retryOne(context, id) {
  const of = context.route.params.id;
  const isRetried = await context.act({ path: path("jobs", id, "retry"), done: t("The job is waiting again") });
  if (!isRetried) return;
  context.update({ trial: { of, id, status: null, error: "" } });
  while (!context.page.isClosed && context.ui.trial?.id === id) {
    try {
      const { status } = await get(path("jobs", id));
      context.update({ trial: { of, id, status, error: "" } });
      if (FINAL.includes(status.state)) break;
    } catch (error) {
      context.update({ trial: { of, id, status: null, error: messageOf(error) } });
      break;
    }
    await new Promise((resolve) => setTimeout(resolve, TRIAL_INTERVAL));
  }
  if (!context.page.isClosed) void context.refresh();
}

/** What has become of the job that was retried alone, and the button for the others. @param {Context} context */
function trialNotice(context) {
  const { trial } = context.ui;
  if (trial?.of !== context.route.params.id) return null;
  const { status, error } = trial;
  const { failed } = context.data.group;
  const hasSucceeded = status?.state === "succeeded";
  const job = jobLink(trial.id);
  return h(
    "div",
    { class: "notices", key: "trial", role: "status" },
    h(
      "div",
      { class: `notice notice-${error || status?.state === "failed" ? "bad" : "info"}` },
      icon(hasSucceeded ? "succeeded" : "retry"),
      h(
        "div",
        null,
        error
          ? error
          : hasSucceeded
            ? withElements("{job} succeeded.", { job })
            : status?.state === "failed"
              ? [withElements("{job} failed again:", { job }), ` ${status.error?.type ?? ""}: ${status.error?.message ?? ""}`]
              : [withElements("{job} was retried. It is now:", { job }), " ", badge(status ? jobState(status) : "waiting")],
      ),
      hasSucceeded &&
        failed > 0 &&
        button(t("Retry {jobs} more", { jobs: format.plural(failed, "job") }), { kind: "primary", why: context.denied("operate") }, () => void retryAll(context)),
    ),
  );
}

/** @param {Context} context */
function retryButton(context) {
  const { failed } = context.data.group;
  if (!failed) return null;
  return button(
    t("Retry {jobs}", { jobs: format.plural(failed, "job") }),
    { icon: "retry", kind: "primary", why: context.denied("operate") },
    () => void retryAll(context),
  );
}

/** Retry the jobs that have failed by now. @param {Context} context */
async function retryAll(context) {
  const { route } = context;
  const list = address(["failures"], { span: route.query.get("span") });
  try {
    const all = await get(path("failures", route.params.id), { span: spanOf(route).span, jobs: MAX_JOBS });
    const ids = all.jobs
      .filter((/** @type {any} */ job) => !job.is_retrying)
      .map((/** @type {any} */ job) => job.id);
    await changeListed("retry", ids, (isChanged) => {
      // The user may have gone to another page meanwhile.
      const isHere = currentRoute().params.id === route.params.id;
      if (isChanged && isHere) go(list);
      else void context.refresh();
    });
  } catch (error) {
    toast(messageOf(error), "bad");
    void context.refresh();
  }
}

/** @param {any} group */
function causePanel(group) {
  const { error } = group;
  return panel(
    t("Root cause"),
    {},
    causeView(group.cause),
    error && [
      h("p", { class: "hint", key: "newest" }, withElements("Newest error, of {job}, {time}", { job: jobLink(group.id), time: when(group.last_at) })),
      h("p", { class: "cause-message", key: "message" }, h("b", null, error.type), error.message && `: ${format.errorMessage(error)}`),
      error.traceback &&
        h(
          "details",
          { key: "traceback" },
          h("summary", null, t("Whole traceback")),
          h(
            "div",
            { class: "code-box" },
            copyButton(error.traceback, t("the traceback")),
            h("pre", { tabindex: "0", role: "region", "aria-label": t("Traceback of the newest error") }, error.traceback),
          ),
        ),
    ],
  );
}

/** @param {any} data */
function trend({ group, since, now, step, deploys }) {
  const from = Date.parse(since);
  const to = Date.parse(now);
  return chartPanel(
    t("Trend"),
    { hint: t("failures per {duration}", { duration: format.duration(step) }) },
    {
      label: trendLabel(group),
      from,
      to,
      step: step * 1000,
      unit: format.count,
      isWhole: true,
      marks: deployMarks(deploys),
      series: [
        {
          name: t("Failures"),
          tone: "red",
          kind: "area",
          values: group.trend.map((/** @type {number} */ count, /** @type {number} */ at) => [from + at * step * 1000, count]),
        },
      ],
    },
  );
}

/** @param {any} data */
function jobList({ group, jobs }) {
  const count = group.failed + group.retrying;
  return panel(
    t("Jobs"),
    {
      class: "bare",
      hint: jobs.length < count ? t("the newest {count} of {jobs}", { count: format.count(jobs.length), jobs: format.plural(count, "job") }) : format.plural(count, "job"),
    },
    table({
      label: t("Jobs that failed for this reason"),
      rows: jobs,
      key: (job) => job.id,
      columns: [
        { name: t("Job"), extra: "job-cell", cell: (job) => jobLink(job.id) },
        {
          name: t("State"),
          cell: (job) => (job.is_retrying ? badge("scheduled", t("retrying")) : badge("failed")),
        },
        { name: t("Queue"), cell: (job) => link(address(["jobs"], { queue: job.queue }), job.queue) },
        { name: t("Failed"), align: "right", extra: "time-cell", cell: (job) => when(job.failed_at) },
      ],
    }),
  );
}

/** @param {any} group */
function about(group) {
  return panel(
    t("About"),
    {},
    facts([
      [t("Task"), link(address(["jobs"], { task: group.task }), group.task)],
      [t("Queue"), group.queues.map((/** @type {string} */ queue, /** @type {number} */ at) => [at > 0 && ", ", link(address(["jobs"], { queue }), queue)])],
      [t("Failed"), format.plural(group.failed, "job")],
      [t("Retrying"), format.plural(group.retrying, "job")],
      group.keys && [t("Keys"), format.count(group.keys)],
      [t("First seen"), moment(group.first_ever_at)],
      [t("Last seen"), moment(group.last_at)],
    ]),
  );
}
