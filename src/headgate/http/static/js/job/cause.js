/** The root cause of a failure: the innermost exception, and the last line of the user's own code. */

import { h } from "../dom.js";
import { errorMessage } from "../format.js";
import { t } from "../language.js";
import { copyButton, link } from "../parts.js";
import { address } from "../router.js";

/** @typedef {{file: string, line: number, function: string}} CodePlace */
/** @typedef {{type: string, message: string, place: CodePlace | null}} RootCause */

/** @param {RootCause} cause */
export function causeText(cause) {
  return cause.message ? `${cause.type}: ${errorMessage(cause)}` : cause.type;
}

/** @param {CodePlace | null} place */
export function placeText(place) {
  return place ? t("{file}:{line} in {function}", { file: place.file, line: place.line, function: place.function }) : t("no line of your code is known");
}

/** The root cause with its place. @param {RootCause} cause */
export function causeView(cause) {
  return h(
    "div",
    { class: "cause", key: "cause" },
    h("p", null, h("b", { class: "bad-text" }, cause.type), cause.message && `: ${errorMessage(cause)}`),
    placeView(cause),
  );
}

/** @param {RootCause} cause */
function placeView({ place }) {
  return h(
    "p",
    { class: "cause-place" },
    h("span", { class: "mono" }, placeText(place)),
    place && copyButton(`${place.file}:${place.line}`, t("the place")),
  );
}

/** Whether it is the last error of a failed job, which its page shows first. @param {any} job @param {{type: string, message: string} | null} error */
export function isShownFirst(job, error) {
  return job.status.state === "failed" && job.error?.type === error?.type && job.error?.message === error?.message;
}

/** The last error of a failed job, its root cause, and a link to the jobs that failed for the same reason. @param {any} job */
export function jobCause(job) {
  const { error, cause } = job;
  const isOther = cause.type !== error.type || cause.message !== error.message;
  return h(
    "div",
    { class: "job-cause", key: "job-cause" },
    h("p", { class: "job-error" }, h("b", { class: "bad-text" }, error.type), error.message && `: ${errorMessage(error)}`),
    isOther && h("h2", { class: "cause-title" }, t("Root cause")),
    isOther ? causeView(cause) : placeView(cause),
    h(
      "p",
      { class: "hint" },
      link(address(["failures", job.status.id], { span: "24h" }), t("Jobs that failed for the same reason")),
    ),
  );
}
