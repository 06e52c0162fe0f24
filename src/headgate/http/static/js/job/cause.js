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

const FRAME = /File "([^"\n]+)", line (\d+), in (.+)\n/g;
/** Its source is further right than the next frame, and than the message. */
const SOURCE = /^[ |]* {4}\S/;

/** The lines of source that the traceback has of a place. @param {{traceback: string | null}} error @param {CodePlace | null} place */
function sourceView({ traceback }, place) {
  const frame = [...(traceback ?? "").matchAll(FRAME)].findLast(
    ([, file, line, name]) => file === place?.file && Number(line) === place.line && name === place.function,
  );
  if (!frame || traceback === null) return null;
  const lines = traceback.slice(frame.index + frame[0].length).split("\n");
  const end = lines.findIndex((line) => !SOURCE.test(line));
  const source = lines.slice(0, end < 0 ? undefined : end);
  if (!source.length) return null;
  const indent = Math.min(...source.map((line) => line.search(/[^ |]/)));
  return h(
    "pre",
    { class: "cause-source", tabindex: "0", role: "region", "aria-label": t("Source of the error") },
    source.map((line) => line.slice(indent)).join("\n"),
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
    sourceView(error, cause.place),
    h(
      "p",
      { class: "hint" },
      link(address(["failures", job.status.id], { span: "24h" }), t("Jobs that failed for the same reason")),
    ),
  );
}
