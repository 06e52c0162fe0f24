/** The root cause of a failure: the innermost exception, and the last line of the user's own code. */

import { h } from "../dom.js";
import { copyButton, link } from "../parts.js";
import { address } from "../router.js";

/** @typedef {{file: string, line: number, function: string}} CodePlace */
/** @typedef {{type: string, message: string, place: CodePlace | null}} RootCause */

/** @param {RootCause} cause */
export function causeText(cause) {
  return cause.message ? `${cause.type}: ${cause.message}` : cause.type;
}

/** @param {CodePlace | null} place */
export function placeText(place) {
  return place ? `${place.file}:${place.line} in ${place.function}` : "no line of your code is known";
}

/** The root cause with its place. @param {RootCause} cause */
export function causeView(cause) {
  const { place } = cause;
  return h(
    "div",
    { class: "cause", key: "cause" },
    h("p", null, h("b", { class: "bad-text" }, cause.type), cause.message && `: ${cause.message}`),
    h(
      "p",
      { class: "cause-place" },
      h("span", { class: "mono" }, placeText(place)),
      place && copyButton(`${place.file}:${place.line}`, "the place"),
    ),
  );
}

/** The root cause of the last error of a job, with a link to the jobs that failed for the same reason. @param {any} job */
export function jobCause(job) {
  if (!job.cause || job.status.state !== "failed") return null;
  return h(
    "div",
    { class: "job-cause", key: "job-cause" },
    causeView(job.cause),
    h(
      "p",
      { class: "hint" },
      link(address(["failures", job.status.id], { span: "24h" }), "Jobs that failed for the same reason"),
    ),
  );
}
