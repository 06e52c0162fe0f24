/** A short list of jobs, on the page of what they belong to. */

import { h } from "../dom.js";
import * as format from "../format.js";
import { t } from "../language.js";
import { badge, jobLink, jobState, link, panel, when } from "../parts.js";
import { table } from "../table.js";

/** @param {string} title @param {any[]} jobs @param {{href: string, none: string, more?: import("../dom.js").Children}} options */
export function jobsPanel(title, jobs, { href, none, more }) {
  return panel(
    title,
    { class: "bare", aside: [more, link(href, t("Show all"))] },
    jobs.length > 0
      ? table({
          label: title,
          rows: jobs,
          key: (job) => job.id,
          extra: "compact few",
          columns: [
            {
              name: t("Job"),
              extra: "grow",
              cell: (job) => [jobLink(job.id), " ", h("b", null, job.task), errorLine(job)],
            },
            { name: t("State"), cell: (job) => badge(jobState(job)) },
            {
              name: t("Time"),
              align: "right",
              extra: "time-cell",
              cell: (job) => when(job.finished_at ?? job.started_at ?? job.enqueued_at),
            },
          ],
        })
      : h("p", { class: "panel-note faint" }, none),
  );
}

/** The error of a job, below what a list says of it. @param {any} job */
export function errorLine(job) {
  return (
    job.error &&
    h(
      "span",
      { class: "cell-below bad-text one-line", key: "error", title: format.errorMessage(job.error) },
      h("b", null, job.error.type),
      `: ${format.errorMessage(job.error)}`,
    )
  );
}
