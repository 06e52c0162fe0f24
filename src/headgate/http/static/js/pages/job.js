/** One job: its state and the reason, timeline, errors, log, payload and result. */

import { get, optional, path } from "../api.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { about, values } from "../job/about.js";
import { runAgain } from "../job/enqueue.js";
import { errors } from "../job/errors.js";
import { loadLines, logs, emptyLog } from "../job/log.js";
import { timeline } from "../job/timeline.js";
import { progress, why } from "../job/why.js";
import { badge, button, copyButton, copyCommand, heading, jobState } from "../parts.js";
import { address } from "../router.js";

/** @typedef {import("../page.js").Context} Context */

/** @type {import("../page.js").PageDefinition} */
export const job = {
  title: ({ params }) => `Job ${format.shortId(params.id)}`,
  every: 5_000,
  ui: emptyLog,
  load: async (context, signal) => {
    const id = context.route.params.id;
    const [job, explained] = await Promise.all([
      get(path("jobs", id), {}, signal),
      optional(get(path("jobs", id, "explain"), {}, signal)),
      loadLines(context, signal),
    ]);
    return { job, explained };
  },
  view: (context) => {
    const { data } = context;
    const { job } = data;
    const { status } = job;
    return [
      heading(status.task, {
        crumbs: [
          ["Jobs", "jobs"],
          [`queue ${status.queue}`, address(["jobs"], { queue: status.queue })],
        ],
        badges: badge(jobState(status)),
        actions: actions(context),
        below: h("p", { class: "job-id mono" }, status.id, copyButton(status.id, "the id")),
      }),
      why(data),
      status.progress && progress(status),
      h(
        "div",
        { class: "two wide-left", key: "body" },
        h("div", { class: "stack", key: "left" }, timeline(job), errors(job), logs(context)),
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
  const body = (/** @type {string} */ verb, /** @type {string} */ text) => [
    h("p", null, text),
    h("p", { class: "command-line" }, h("code", null, command("jobs", verb, id))),
  ];
  return [
    ["failed", "cancelled"].includes(status.state) &&
      button(
        "Retry",
        { icon: "retry", kind: "primary", why: denied },
        act("retry", "The job is waiting again", {
          title: "Retry this job?",
          action: "Retry",
          body: body("retry", "The job waits again, with all its attempts. Its limits apply as usual."),
        }),
      ),
    state === "scheduled" &&
      button(
        "Run now",
        { icon: "bolt", kind: "primary", why: denied },
        act("run-now", "The job is ready", {
          title: "Run this job now?",
          action: "Run now",
          body: body("run", "The job becomes ready now instead of at its scheduled time. Its limits still apply."),
        }),
      ),
    !isFinal &&
      button(
        "Cancel",
        { icon: "cancelled", kind: "danger-quiet", why: denied },
        act("cancel", status.state === "running" ? "The job was asked to stop" : "The job is cancelled", {
          title: "Cancel this job?",
          action: "Cancel the job",
          dismiss: "Keep the job",
          danger: true,
          body: body(
            "cancel",
            status.state === "running"
              ? "The job is running. It is asked to stop, and is cancelled as soon as its code allows."
              : "The job will never run. Its limits are not charged.",
          ),
        }),
      ),
    button("Run again", { icon: "retry", why: denied }, () => void runAgain(context)),
    copyCommand(command("jobs", "explain", id)),
  ];
}
