/** Buckets as lists show them: one limit for one key, what is used of it, and when it opens. */

import { h } from "../dom.js";
import * as format from "../format.js";
import { allowed, bucketHref, bucketLink, bucketMarks, countdown, gauge, link } from "../parts.js";
import { address } from "../router.js";
import { brief } from "../rule.js";
import { table } from "../table.js";

/** @param {any[]} buckets @param {boolean} isOfOne whether all are of one limit @param {import("../dom.js").Children} none */
export function bucketTable(buckets, isOfOne, none) {
  return table({
    label: "Limits by key",
    rows: buckets,
    key: (bucket) => `${bucket.limit} ${bucket.key}`,
    empty: none,
    columns: [
      {
        name: "Key",
        cell: (bucket) => [
          isOfOne
            ? h(
                "a",
                { href: bucketHref(bucket.limit, bucket.key), class: "clamp", title: bucket.key },
                h("b", null, format.keyName(bucket.key)),
              )
            : bucketLink(bucket.limit, bucket.key),
          " ",
          bucketMarks(bucket),
        ],
      },
      { name: "Rule", extra: "rule-cell", cell: (bucket) => ruleWords(bucket.rule) },
      {
        name: "Used",
        cell: (bucket) =>
          gauge({
            used: bucket.used,
            allowed: allowed(bucket),
            label: `Used of ${bucket.limit} ${bucket.key}`,
            state: bucket.is_paused ? "paused" : "",
          }),
      },
      {
        name: "Waiting",
        align: "right",
        cell: (bucket) =>
          bucket.waiting
            ? link(
                address(["jobs"], { state: "waiting", limit: bucket.limit, key: bucket.key }),
                format.count(bucket.waiting),
              )
            : h("span", { class: "faint" }, "0"),
      },
      { name: "Next slot", align: "right", extra: "moment-cell", cell: (bucket) => nextSlot(bucket) },
    ],
  });
}

/** Whether a rule counts what runs at once, and not starts. @param {string | null | undefined} rule */
export function isAtOnce(rule) {
  return rule?.endsWith("at once") ?? false;
}

/** A rule as lists show it; as it is told, and typed, under the pointer. @param {string | null | undefined} rule */
export function ruleWords(rule) {
  return rule ? h("span", { title: rule }, brief(rule)) : h("span", { class: "faint" }, "not declared here");
}

/** When the next job may start on it. @param {any} bucket */
export function nextSlot(bucket) {
  if (bucket.is_paused) return h("span", { class: "faint" }, "when resumed");
  if (bucket.penalized_until && Date.parse(bucket.penalized_until) > format.now())
    return countdown(bucket.penalized_until);
  if (bucket.next_slot_at) return countdown(bucket.next_slot_at);
  return h("span", { class: "faint" }, bucket.available === 0 ? "when a permit is back" : "now");
}
