/** The stretches of a job, one row each, to scale: what it waited for, and its attempts with their log lines. */

import { classes, h } from "../dom.js";
import * as format from "../format.js";
import { t, withElements, word } from "../language.js";
import { bucketLink, elapsed, link, when } from "../parts.js";
import { address } from "../router.js";

/** Log lines that are marked in the bars: the newest. */
const MOST_MARKS = 300;

/** @param {any} job @param {any[]} lines the log lines that are loaded */
export function stretches(job, lines) {
  const rows = job.stretches;
  if (!rows.length) return null;
  const ends = rows.map((/** @type {any} */ each) => (each.ends_at ? Date.parse(each.ends_at) : format.now()));
  const from = Date.parse(rows[0].begins_at);
  const whole = Math.max(...ends) - from || 1;
  return h(
    "ol",
    { class: "stretches", "aria-label": t("Where the time went") },
    rows.map((/** @type {any} */ each, /** @type {number} */ at) => {
      const begin = Date.parse(each.begins_at);
      const length = Math.max(0, ends[at] - begin);
      const isAhead = each.ends_at && ends[at] > format.now();
      const span = [each.begins_at, each.ends_at ?? null].map((instant) => (instant ? format.instant(instant) : t("now")));
      return h(
        "li",
        { key: `${at} ${each.kind}`, class: `stretch stretch-${each.kind.replace(" ", "-")} state-${toneOf(each)}`, title: span.join(" – ") },
        h("span", { class: "stretch-name" }, nameOf(each)),
        h(
          "span",
          { class: "stretch-track", "aria-hidden": "true" },
          h(
            "span",
            { class: "stretch-bar", style: { left: `${(100 * (begin - from)) / whole}%`, width: `${(100 * length) / whole}%` } },
            each.kind === "attempt" && !each.outcome && progressFill(job.status.progress, begin),
            each.kind === "attempt" && marks(lines, begin, ends[at], length),
          ),
        ),
        h("span", { class: "stretch-time num" }, isAhead ? when(each.ends_at) : each.ends_at ? format.duration(length / 1000) : elapsed(each.begins_at)),
      );
    }),
  );
}

/** @param {any} stretch */
function nameOf({ kind, attempt, restart, node, outcome, is_limited: isLimited, limit, key, ends_at: endsAt }) {
  if (kind === "attempt")
    return [
      format.attempt(attempt, restart),
      node && [" ", withElements("on {node}", { node: link(address(["jobs"], { node }), h("span", { class: "mono" }, node)) })],
      h("span", { class: "stretch-outcome" }, ` ${word(outcome ?? "running")}`),
    ];
  if (kind === "blocked") return t("blocked by what it follows");
  if (kind === "scheduled") return t("scheduled for later");
  if (kind === "backoff") return t("backoff before the retry");
  if (kind === "snoozed") return t("snoozed");
  if (kind === "final") return t("final, until it was retried");
  if (kind === "not stored") return t("waiting, or attempts that are not stored");
  if (!isLimited) return t("waiting");
  if (limit === null) return t("waiting, delayed by a limit");
  const of = { limit: bucketLink(limit, key) };
  return endsAt === null ? withElements("waiting, now for {limit}", of) : withElements("waiting, delayed by {limit}", of);
}

/** @param {any} stretch */
function toneOf({ kind, outcome, is_limited: isLimited }) {
  if (kind === "attempt") {
    if (!outcome) return "running";
    if (["succeeded", "failed", "cancelled"].includes(outcome)) return outcome;
    return outcome === "lost" ? "failed" : "waiting";
  }
  if (kind === "waiting" && isLimited) return "throttled";
  return kind === "scheduled" || kind === "backoff" || kind === "snoozed" ? "scheduled" : "waiting";
}

/** How far a running attempt is, if it has reported. @param {any} progress @param {number} begin */
function progressFill(progress, begin) {
  if (!progress || Date.parse(progress.at) < begin) return null;
  return h("span", { class: "stretch-progress", style: { width: `${100 * progress.fraction}%` } });
}

/** A mark for each log line of an attempt. @param {any[]} lines @param {number} begin @param {number} end @param {number} length */
function marks(lines, begin, end, length) {
  return lines
    .slice(-MOST_MARKS)
    .filter(({ at }) => Date.parse(at) >= begin && Date.parse(at) <= end)
    .map((line) =>
      h("i", {
        key: line.number,
        class: classes("stretch-mark", line.level >= 40 ? "is-error" : line.level >= 30 && "is-warning"),
        style: { left: `${(100 * (Date.parse(line.at) - begin)) / (length || 1)}%` },
        title: line.message,
      }),
    );
}
