/** Why a job has its state: a sentence, its position in its lane, its limits and its progress. */

import { withAppInCommands } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { icon } from "../icons.js";
import { ruleLabel } from "../limits/buckets.js";
import { t, withElements } from "../language.js";
import { allowed, badge, bucketLink, countdown, gauge, jobLink, jobState, when } from "../parts.js";
import { address } from "../router.js";
import { jobCause } from "./cause.js";

/** The reason for the state of a job, with its limits. @param {any} data */
export function why({ job, explained }) {
  const { status } = explained ?? job;
  if (status.state === "failed" && job.error && job.cause)
    return h(
      "section",
      { class: "panel why state-failed", key: "why", "aria-label": t("Why") },
      h("div", { class: "why-reason" }, icon("failed"), jobCause(job)),
    );
  if (!explained) return null;
  const isWaiting = status.state === "waiting";
  // The reason of a final state quotes an error, which stays as it is.
  const text = isWaiting ? withAppInCommands(format.zoned(explained.reason)) : explained.reason;
  const reason = text.charAt(0).toUpperCase() + text.slice(1);
  return h(
    "section",
    { class: `panel why state-${jobState(status)}`, key: "why", "aria-label": t("Why") },
    h("p", { class: "why-reason" }, icon(jobState(status)), h("span", { lang: "en" }, `${reason}.`)),
    isWaiting &&
      (status.predicted_start || status.position) &&
      h(
        "dl",
        { class: "why-numbers" },
        status.position !== null &&
          h(
            "div",
            { key: "position" },
            h("dt", null, t("Position in its lane")),
            h(
              "dd",
              { class: "num" },
              format.count(status.position),
              h("small", null, " ", t("of {count}", { count: format.count(status.lane_waiting) })),
            ),
          ),
        status.predicted_start &&
          h(
            "div",
            { key: "start" },
            h("dt", null, t("Earliest start")),
            h("dd", { class: "num" }, countdown(status.predicted_start)),
          ),
      ),
    explained.limits.length > 0 &&
      h(
        "ul",
        { class: "why-limits" },
        explained.limits.map((/** @type {any} */ limit) =>
          h(
            "li",
            { key: `${limit.limit} ${limit.key}` },
            bucketLink(limit.limit, limit.key),
            h("span", { class: "faint" }, ruleLabel(limit.rule, limit.present)),
            limit.is_paused && badge("paused"),
            gauge({
              used: limit.used,
              allowed: allowed(limit),
              label: t("Used of {limit} {key}", { limit: limit.limit, key: limit.key }),
              state: limit.is_paused ? "paused" : "",
            }),
            isWaiting && !limit.is_paused && limit.next_slot_at && h("span", null, withElements("opens {time}", { time: countdown(limit.next_slot_at) })),
            h("span", { class: "faint" }, format.plural(limit.waiting, "job waiting", "jobs waiting")),
          ),
        ),
      ),
    explained.limits.some((/** @type {any} */ limit) => limit.holders?.length) &&
      h(
        "p",
        { class: "hint" },
        withElements("Permits are held by {holders}", {
          holders: explained.limits
            .flatMap((/** @type {any} */ limit) => limit.holders)
            .slice(0, 5)
            .map((/** @type {any} */ holder, /** @type {number} */ at) => [at > 0 && ", ", holderLink(holder)]),
        }),
      ),
  );
}

/** @param {any} holder */
export function holderLink(holder) {
  if (holder.kind === "owner") return holder.id;
  return holder.kind === "batch"
    ? h("a", { href: address(["batches", holder.id]), class: "mono" }, t("batch {id}", { id: format.shortId(holder.id) }))
    : jobLink(holder.id);
}

/** @param {any} status */
export function progress(status) {
  const { fraction, message, at } = status.progress;
  const share = Math.round(100 * fraction);
  return h(
    "section",
    { class: "panel", key: "progress", "aria-label": t("Progress") },
    h(
      "div",
      {
        class: "progress",
        role: "progressbar",
        "aria-label": t("Progress"),
        "aria-valuemin": "0",
        "aria-valuemax": "100",
        "aria-valuenow": share,
      },
      h("span", { style: { width: `${share}%` } }),
    ),
    h(
      "p",
      { class: "progress-text" },
      h("b", { class: "num" }, `${share} %`),
      message && h("span", null, message),
      h("span", { class: "faint" }, withElements("reported {time}", { time: when(at) })),
    ),
  );
}
