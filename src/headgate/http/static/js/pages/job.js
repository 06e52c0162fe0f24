/** One job: its state and the reason, timeline, errors, log, payload and result. */

import { get, optional, path } from "../api.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { graphPanel } from "../graph.js";
import { about, values } from "../job/about.js";
import { runAgain } from "../job/enqueue.js";
import { errors } from "../job/errors.js";
import { t } from "../language.js";
import { loadLines, logs, emptyLog } from "../job/log.js";
import { reschedule } from "../job/reschedule.js";
import { timeline } from "../job/timeline.js";
import { progress, why } from "../job/why.js";
import { badge, button, copyButton, copyCommand, effect, heading, jobState } from "../parts.js";
import { address, go } from "../router.js";

/** @typedef {import("../page.js").Context} Context */

/** @type {import("../page.js").PageDefinition} */
export const job = {
  title: ({ params }) => t("Job {id}", { id: format.shortId(params.id) }),
  every: 5_000,
  ui: emptyLog,
  load: async (context, signal) => {
    const id = context.route.params.id;
    const [job, explained] = await Promise.all([
      get(path("jobs", id), {}, signal),
      optional(get(path("jobs", id, "explain"), {}, signal)),
      loadLines(context, signal),
    ]);
    const isTied = job.leaders.length > 0 || job.followers.length > 0 || job.batch !== null;
    const graph = isTied ? await optional(get(path("graphs", id), {}, signal)) : null;
    return { job, explained, graph };
  },
  view: (context) => {
    const { data } = context;
    const { job } = data;
    const { status } = job;
    return [
      heading(status.task, {
        crumbs: [
          [t("Jobs"), "jobs"],
          [t("queue {queue}", { queue: status.queue }), address(["queues", status.queue])],
        ],
        badges: badge(jobState(status)),
        actions: actions(context),
        below: h("p", { class: "job-id mono" }, status.id, copyButton(status.id, t("the id"))),
      }),
      why(data),
      status.progress && progress(status),
      graphPanel(data.graph, status.id),
      h(
        "div",
        { class: "two wide-left", key: "body" },
        h("div", { class: "stack", key: "left" }, timeline(job, context.ui.lines), errors(job), logs(context)),
        h("div", { class: "stack", key: "right" }, about(job), values(job)),
      ),
    ];
  },
};

/** @param {Context} context */
function actions(context) {
  const { status } = context.data.job;
  const { id } = status;
  const denied = context.denied("operate");
  const isFinal = !["waiting", "running"].includes(status.state);
  const state = jobState(status);
  const act =
    (/** @type {string} */ endpoint, /** @type {string} */ done, /** @type {import("../dialogs.js").Question} */ question) =>
    () =>
      void context.act({ path: path("jobs", id, endpoint), done, question });
  const body = (/** @type {string} */ verb, /** @type {string} */ text) => effect(text, command("jobs", verb, id));
  return [
    ["failed", "cancelled"].includes(status.state) &&
      button(
        t("Retry"),
        { icon: "retry", kind: "primary", why: denied },
        act("retry", t("The job is waiting again"), {
          title: t("Retry this job?"),
          action: t("Retry"),
          body: body("retry", t("The job waits again, with all its attempts. Its limits apply as usual.")),
        }),
      ),
    state === "scheduled" &&
      button(
        t("Run now"),
        { icon: "bolt", kind: "primary", why: denied },
        act("run-now", t("The job is ready"), {
          title: t("Run this job now?"),
          action: t("Run now"),
          body: body("run", t("The job becomes ready now instead of at its scheduled time. Its limits still apply.")),
        }),
      ),
    !isFinal &&
      button(
        t("Cancel"),
        { icon: "cancelled", kind: "danger-quiet", why: denied },
        act("cancel", status.state === "running" ? t("The job was asked to stop") : t("The job is cancelled"), {
          title: t("Cancel this job?"),
          action: t("Cancel the job"),
          dismiss: t("Keep the job"),
          danger: true,
          body: body(
            "cancel",
            status.state === "running"
              ? t("The job is running. It is asked to stop, and is cancelled as soon as its code allows.")
              : t("The job will not run. Its limits are not charged."),
          ),
        }),
      ),
    status.state === "waiting" && button(t("Reschedule"), { icon: "scheduled", why: denied }, () => void reschedule(context)),
    isFinal &&
      button(
        t("Delete"),
        { icon: "failed", kind: "danger-quiet", why: context.denied("admin") },
        () =>
          void context.act({
            method: "DELETE",
            path: path("jobs", id),
            done: t("The job is deleted"),
            then: () => go(address(["jobs"], { task: status.task })),
            question: {
              title: t("Delete this job?"),
              action: t("Delete the job"),
              dismiss: t("Keep the job"),
              danger: true,
              body: body(
                "delete",
                t("The job is deleted for good, with its result, attempts, log lines and audit entries. This cannot be undone."),
              ),
            },
          }),
      ),
    button(t("Run again"), { icon: "retry", why: denied }, () => void runAgain(context)),
    copyCommand(command("jobs", "explain", id)),
  ];
}
