/** The errors of a job's attempts, newest first. */

import { h } from "../dom.js";
import * as format from "../format.js";
import { t } from "../language.js";
import { copyButton, panel, when } from "../parts.js";
import { isShownFirst } from "./cause.js";

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
    !all.some((each) => isSame(each.error, job.error))
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
  // Each error is shown once: at the top of the page, or at the newest attempt that had it.
  const isKnown = (/** @type {any} */ attempt, /** @type {number} */ at) =>
    isShownFirst(job, attempt.error) || all.slice(0, at).some((newer) => isSame(newer.error, attempt.error));
  return panel(
    t("Errors"),
    { hint: format.plural(all.length, "error") },
    all.map((attempt, at) =>
      h(
        "details",
        { class: "error", key: `${attempt.number} ${attempt.ended_at}`, open: at === 0 },
        h(
          "summary",
          null,
          h("span", { class: "chip" }, format.attempt(attempt.number, attempt.restart)),
          h("b", { class: "bad-text" }, attempt.error.type),
          isKnown(attempt, at)
            ? h("span", { class: "faint" }, t("as above"))
            : h("span", { class: "one-line" }, format.errorMessage(attempt.error)),
          attempt.ended_at && h("span", { class: "faint push" }, when(attempt.ended_at)),
        ),
        h(
          "div",
          { class: "error-body" },
          !isKnown(attempt, at) && h("p", null, format.errorMessage(attempt.error)),
          attempt.error.traceback &&
            h(
              "div",
              { class: "code-box" },
              copyButton(attempt.error.traceback, t("the traceback")),
              h(
                "pre",
                { tabindex: "0", role: "region", "aria-label": t("Traceback of {attempt}", { attempt: format.attempt(attempt.number, attempt.restart) }) },
                attempt.error.traceback,
              ),
            ),
        ),
      ),
    ),
  );
}

/** @param {any} one @param {any} other */
function isSame(one, other) {
  return one.type === other.type && one.message === other.message;
}
