/** The table of buckets (a limit for one key): how much is used, and when the next job may start. */

import { h } from "../dom.js";
import * as format from "../format.js";
import { allowed, bucketHref, bucketLink, bucketBadges, countdown, gauge, link } from "../parts.js";
import { address } from "../router.js";
import { shortRule } from "../rule.js";
import { table } from "../table.js";

/** @param {any[]} buckets @param {boolean} isOneLimit whether all are of one limit @param {import("../dom.js").Children} none the empty state */
export function bucketTable(buckets, isOneLimit, none) {
  return table({
    label: "Limits by key",
    rows: buckets,
    key: (bucket) => `${bucket.limit} ${bucket.key}`,
    empty: none,
    columns: [
      {
        name: "Key",
        cell: (bucket) => [
          isOneLimit
            ? h(
                "a",
                { href: bucketHref(bucket.limit, bucket.key), class: "clamp", title: bucket.key },
                h("b", null, format.keyName(bucket.key)),
              )
            : bucketLink(bucket.limit, bucket.key),
          " ",
          bucketBadges(bucket),
        ],
      },
      { name: "Rule", extra: "rule-cell", cell: (bucket) => ruleLabel(bucket.rule, bucket.present) },
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
      { name: "Next slot", align: "right", extra: "time-cell", cell: (bucket) => nextSlot(bucket) },
    ],
  });
}

/** Whether a rule limits concurrent jobs, not a rate. @param {string | null | undefined} rule */
export function isAtOnce(rule) {
  return rule?.endsWith("at once") ?? false;
}

/**
 * A rule in short form; the title has the full rule. An adaptive rule has a present rate.
 *
 * @param {string | null | undefined} rule @param {string | null} [present]
 */
export function ruleLabel(rule, present) {
  if (present) return h("span", { title: rule }, `now ${shortRule(present)}`);
  return rule ? h("span", { title: rule }, shortRule(rule)) : h("span", { class: "faint" }, "not declared by this app");
}

/** When the next job may start. @param {any} bucket */
export function nextSlot(bucket) {
  if (bucket.is_paused) return h("span", { class: "faint" }, "when resumed");
  if (bucket.penalized_until && Date.parse(bucket.penalized_until) > format.now())
    return countdown(bucket.penalized_until);
  if (bucket.next_slot_at) return countdown(bucket.next_slot_at);
  return h("span", { class: "faint" }, bucket.available === 0 ? "when a permit is free" : "now");
}
