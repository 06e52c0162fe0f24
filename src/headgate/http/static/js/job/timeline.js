/** The life of a job, moment by moment, with what lay between them. */

import { h } from "../dom.js";
import * as format from "../format.js";
import { icon } from "../icons.js";
import { clock, lasting, link, panel } from "../parts.js";
import { address } from "../router.js";

/** @param {any} job */
export function timeline(job) {
  const moments = job.timeline;
  return panel(
    "Timeline",
    {},
    h(
      "ol",
      { class: "timeline" },
      moments.map((/** @type {any} */ moment, /** @type {number} */ at) => {
        const before = at ? (Date.parse(moment.at) - Date.parse(moments[at - 1].at)) / 1000 : null;
        const isOpen = at === moments.length - 1 && moment.what.startsWith("is running");
        return h(
          "li",
          { key: `${at} ${moment.what}`, class: `moment state-${toneOf(moment.what)}` },
          before !== null && before > 0 && h("span", { class: "moment-gap num" }, format.duration(before)),
          h("span", { class: "moment-mark" }, icon(toneOf(moment.what))),
          h(
            "div",
            { class: "moment-body" },
            h(
              "p",
              null,
              h("b", null, worded(moment.what)),
              moment.attempt && h("span", { class: "chip" }, `attempt ${moment.attempt}`),
              isOpen && h("span", { class: "faint" }, " for ", lasting(moment.at)),
            ),
            h(
              "p",
              { class: "moment-when faint" },
              h("span", { class: "num" }, clock(moment.at)),
              moment.node && [
                " on ",
                link(address(["jobs"], { node: moment.node }), h("span", { class: "mono" }, moment.node)),
              ],
              moment.actor && [" by ", link(address(["audit"], { actor: moment.actor }), moment.actor)],
            ),
            moment.detail &&
              moment.detail !== moments[at - 1]?.detail &&
              h("p", { class: "moment-detail" }, moment.detail),
          ),
        );
      }),
    ),
  );
}

/** @param {string} what */
function worded(what) {
  const words = what.replace(/^final: /, "final, ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** Which state a moment looks like. @param {string} what */
function toneOf(what) {
  const word = what.replace(/^final: /, "");
  if (["succeeded", "failed", "cancelled"].includes(word)) return word;
  if (word === "started" || word.startsWith("is running")) return "running";
  if (word === "retried" || word === "lost" || word.includes("error")) return "failed";
  if (word === "cancel") return "cancelled";
  if (word === "snoozed") return "scheduled";
  return "waiting";
}
