/** The table of buckets (a limit for one key): how much is used, and when the next job may start. */

import { h } from "../dom.js";
import * as format from "../format.js";
import { t } from "../language.js";
import { allowed, bucketHref, bucketLink, bucketBadges, countdown, gauge, link } from "../parts.js";
import { address } from "../router.js";
import { shortRule } from "../rule.js";
import { declared, table } from "../table.js";

/** How keys are listed: the store does not rank the keys if jobs wait for many. @param {any} page of keys */
export function orderHint(page) {
  return page.is_ranked ? t("most waiting jobs first") : t("by limit and key");
}

/** @param {any[]} buckets @param {boolean} isOneLimit whether all are of one limit @param {import("../dom.js").Children} none the empty state */
export function bucketTable(buckets, isOneLimit, none) {
  return table({
    label: t("Limits by key"),
    extra: "dense",
    rows: buckets,
    key: (bucket) => `${bucket.limit} ${bucket.key}`,
    empty: none,
    columns: declared("limits", buckets, {
      key: {
        extra: "key-cell grow",
        cell: (bucket) => [
          isOneLimit
            ? h(
                "a",
                { href: bucketHref(bucket.limit, bucket.key), class: "one-line", title: bucket.key },
                h("b", null, format.keyName(bucket.key)),
              )
            : bucketLink(bucket.limit, bucket.key, "one-line"),
          bucketBadges(bucket),
        ],
      },
      rule: { extra: "rule-cell", cell: (bucket) => ruleLabel(bucket.rule, bucket.present) },
      used: {
        extra: "used-cell",
        align: undefined,
        cell: (bucket) =>
          gauge({
            used: bucket.used,
            allowed: allowed(bucket),
            label: t("Used of {limit} {key}", { limit: bucket.limit, key: bucket.key }),
            state: bucket.is_paused ? "paused" : "",
          }),
      },
      waiting: {
        extra: "waiting-cell",
        cell: (bucket) =>
          bucket.waiting
            ? link(
                address(["jobs"], { state: "waiting", limit: bucket.limit, key: bucket.key }),
                format.count(bucket.waiting),
              )
            : h("span", { class: "faint" }, "0"),
      },
      next_slot_at: { extra: "next-cell time-cell", cell: nextSlot },
    }),
  });
}

/** Whether a rule limits concurrent jobs, not a rate. @param {string | null | undefined} rule */
export function isAtOnce(rule) {
  return rule?.endsWith("at once") ?? false;
}

/**
 * A rule in short form; the title has the full rule, unless the short form says all. An adaptive rule has a present rate.
 *
 * @param {string | null | undefined} rule @param {string | null} [present]
 */
export function ruleLabel(rule, present) {
  if (present) return h("span", { title: rule }, t("now {present}", { present: shortRule(present) }));
  return rule ? h("span", { title: isAtOnce(rule) ? null : rule }, shortRule(rule)) : h("span", { class: "faint" }, t("not declared by this app"));
}

/** When the next job may start. @param {any} bucket */
export function nextSlot(bucket) {
  if (bucket.is_paused) return h("span", { class: "faint" }, t("when resumed"));
  if (bucket.next_slot_at) return countdown(bucket.next_slot_at);
  // Of a limit that this app does not declare, it is not known how many are available.
  const isFull = bucket.available === 0 || (bucket.available === null && bucket.is_waited_for);
  return h("span", { class: "faint" }, isFull ? t("when a permit is free") : t("now"));
}
