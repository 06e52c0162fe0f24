/** The errors of a job's attempts, newest first. */

import { h } from "../dom.js";
import * as format from "../format.js";
import { copyButton, panel, when } from "../parts.js";
import { jobCause } from "./cause.js";

/** @param {any} job */
export function errors(job) {
  const all = [...job.attempts].filter((/** @type {any} */ attempt) => attempt.error).reverse();
  const restart = Math.max(...job.timeline.map((/** @type {any} */ entry) => entry.restart));
  const isKept = all.some(
    (/** @type {any} */ attempt) =>
      attempt.number === job.status.attempt && attempt.restart === restart && attempt.outcome === "failed",
  );
  if (
    job.error &&
    !isKept &&
    job.status.state !== "waiting" &&
    !all.some((each) => each.error.message === job.error.message && each.error.type === job.error.type)
  ) {
    all.unshift({
      number: job.status.attempt,
      restart,
      error: job.error,
      ended_at: job.status.finished_at,
      outcome: job.status.state,
    });
  }
  if (!all.length) return null;
  return panel(
    "Errors",
    { hint: format.plural(all.length, "error") },
    jobCause(job),
    all.map((attempt, at) =>
      h(
        "details",
        { class: "error", key: `${attempt.number} ${attempt.ended_at}`, open: at === 0 },
        h(
          "summary",
          null,
          h("span", { class: "chip" }, format.attempt(attempt.number, attempt.restart)),
          h("b", { class: "bad-text" }, attempt.error.type),
          h("span", { class: "one-line" }, attempt.error.message),
          attempt.ended_at && h("span", { class: "faint push" }, when(attempt.ended_at)),
        ),
        h(
          "div",
          { class: "error-body" },
          h("p", null, attempt.error.message),
          attempt.error.traceback &&
            h(
              "div",
              { class: "code-box" },
              copyButton(attempt.error.traceback, "the traceback"),
              h(
                "pre",
                { tabindex: "0", role: "region", "aria-label": `Traceback of ${format.attempt(attempt.number, attempt.restart)}` },
                attempt.error.traceback,
              ),
            ),
        ),
      ),
    ),
  );
}
