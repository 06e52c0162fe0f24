/** The timeline of a job: where the time went, its events, and the time between them. */

import { h } from "../dom.js";
import * as format from "../format.js";
import { icon } from "../icons.js";
import { t, withElements, word } from "../language.js";
import { clock, elapsed, link, panel } from "../parts.js";
import { address } from "../router.js";
import { isShownFirst } from "./cause.js";
import { stretches } from "./stretches.js";

/** @param {any} job @param {any[]} lines the log lines that are loaded */
export function timeline(job, lines) {
  const entries = job.timeline;
  const { error } = job;
  const known = new Set(error && isShownFirst(job, error) ? [`${error.type}: ${error.message}`] : []);
  /** @type {(string | null)[]} an error that was shown before is left out */
  const details = entries.map((/** @type {any} */ { detail, actor }) => {
    if (!detail || known.has(detail)) return null;
    if (!actor) known.add(detail);
    return detail;
  });
  return panel(
    t("Timeline"),
    {},
    stretches(job, lines),
    h(
      "ol",
      { class: "timeline" },
      entries.map((/** @type {any} */ entry, /** @type {number} */ at) => {
        const before = format.secondsBetween(entries[at - 1]?.at, entry.at);
        const isOpen = at === entries.length - 1 && entry.what.startsWith("is running");
        return h(
          "li",
          { key: `${at} ${entry.what}`, class: `entry state-${toneOf(entry.what)}` },
          before !== null && before > 0 && h("span", { class: "entry-gap num" }, format.duration(before)),
          h("span", { class: "entry-mark" }, icon(toneOf(entry.what))),
          h(
            "div",
            { class: "entry-body" },
            h(
              "p",
              null,
              h("b", null, label(entry.what)),
              entry.attempt && h("span", { class: "chip" }, format.attempt(entry.attempt, entry.restart)),
              isOpen && h("span", { class: "faint" }, " ", withElements("for {time}", { time: elapsed(entry.at) })),
            ),
            h(
              "p",
              { class: "entry-time faint" },
              h("span", { class: "num" }, clock(entry.at)),
              entry.node && [
                " ",
                withElements("on {node}", {
                  node: link(address(["jobs"], { node: entry.node }), h("span", { class: "mono" }, entry.node)),
                }),
              ],
              entry.actor && [
                " ",
                withElements("by {actor}", { actor: link(address(["audit"], { actor: entry.actor }), entry.actor) }),
              ],
            ),
            details[at] && h("p", { class: "entry-detail" }, entry.actor ? format.zoned(entry.detail) : entry.detail),
          ),
        );
      }),
    ),
  );
}

/** @param {string} what */
function label(what) {
  const text = word(what.replace(/^final: /, "job "));
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** The state whose colour and icon an entry has. @param {string} what */
function toneOf(what) {
  const event = what.replace(/^final: /, "");
  if (["succeeded", "failed", "cancelled", "skipped"].includes(event)) return event;
  if (event === "started" || event.startsWith("is running")) return "running";
  if (event === "retried" || event === "lost" || event.includes("error")) return "failed";
  if (event === "cancel") return "cancelled";
  if (event === "snoozed") return "scheduled";
  return "waiting";
}
