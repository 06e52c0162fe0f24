/** The properties of a job, its payload and its result. */

import { h } from "../dom.js";
import * as format from "../format.js";
import { jsonView } from "../json.js";
import { t, word } from "../language.js";
import { bucketLink, facts, jobLink, link, moment, panel } from "../parts.js";
import { address } from "../router.js";

/** @param {any} job */
export function about(job) {
  const { status } = job;
  const ran = format.secondsBetween(status.started_at, status.finished_at);
  const waited = format.secondsBetween(status.run_at, status.started_at);
  /** @type {[string, import("../dom.js").Children][]} */
  const items = [
    [t("Task"), link(address(["tasks", status.task]), status.task)],
    [t("Queue"), link(address(["queues", status.queue]), status.queue)],
    [t("Priority"), String(status.priority)],
    [t("Attempt"), status.attempt ? String(status.attempt) : t("none yet")],
    [t("Enqueued"), moment(status.enqueued_at)],
    [t("Due"), moment(status.run_at)],
  ];
  if (status.enqueued_by) items.push([t("Enqueued by"), h("span", { class: "mono" }, status.enqueued_by)]);
  if (status.started_at) items.push([t("Started"), moment(status.started_at)]);
  if (waited !== null && waited >= 0 && status.attempt <= 1) items.push([t("Waited"), format.duration(waited)]);
  if (status.deferrals) items.push([t("Delayed by limits"), format.plural(status.deferrals, "start")]);
  if (status.finished_at) items.push([t("Finished"), moment(status.finished_at)]);
  if (ran !== null && ran >= 0) items.push([t("Ran"), format.duration(ran)]);
  if (job.node)
    items.push([t("Node"), link(address(["jobs"], { node: job.node }), h("span", { class: "mono" }, job.node))]);
  if (job.cancel_requested) items.push([t("Cancellation"), t("requested")]);
  if (job.expires_at && status.state === "waiting") items.push([t("Expires"), moment(job.expires_at)]);
  if (job.unique_key)
    items.push([t("Unique key"), link(address(["jobs"], { unique_key: job.unique_key }), job.unique_key)]);
  if (job.status.tags.length)
    items.push([
      t("Tags"),
      job.status.tags.map((/** @type {string} */ tag) => [link(address(["jobs"], { tag }), tag), " "]),
    ]);
  if (job.schedule) items.push([t("Schedule"), link(address(["schedules", job.schedule]), job.schedule)]);
  if (job.batch)
    items.push([
      t("Batch"),
      link(address(["batches", job.batch]), h("span", { class: "mono" }, format.shortId(job.batch))),
    ]);
  if (job.leaders?.length) items.push([status.is_blocked ? t("Waits for") : t("Follows"), dependencyItems(job.leaders)]);
  if (job.followers?.length) items.push([t("Followed by"), dependencyItems(job.followers)]);
  if (job.buckets?.length)
    items.push([
      t("Limits"),
      job.buckets.map((/** @type {any} */ bucket) =>
        h(
          "div",
          { key: `${bucket.limit} ${bucket.key}` },
          bucketLink(bucket.limit, bucket.key),
          bucket.cost > 1 && h("span", { class: "faint" }, ` × ${bucket.cost}`),
        ),
      ),
    ]);
  items.push([t("Audit level"), word(job.audit)]);
  return panel(t("About"), {}, facts(items));
}

/** Links to the jobs and batches before or after a job. @param {any[]} jobs */
export function dependencyItems(jobs) {
  return jobs.map((each) =>
    h(
      "div",
      { key: each.id },
      each.task === null && each.state !== null
        ? link(address(["batches", each.id]), h("span", { class: "mono" }, format.shortId(each.id)))
        : jobLink(each.id),
      h("span", { class: "faint" }, ` ${each.task ?? (each.state === null ? "" : t("batch"))} ${each.state ? word(each.state) : t("deleted")}`),
      each.needs && each.needs !== "success" && h("span", { class: "faint" }, ` · ${t("on {outcome}", { outcome: word(each.needs) })}`),
    ),
  );
}

/** @param {any} job */
export function values(job) {
  const isDone = job.status.state === "succeeded";
  return [
    panel(t("Payload"), {}, jsonView(job.payload ?? {}, t("Payload"))),
    job.results && panel(t("Results as arguments"), {}, jsonView(job.results, t("Results as arguments"))),
    isDone && panel(t("Result"), {}, jsonView(job.result ?? null, t("Result"))),
    Object.keys(job.annotations).length > 0 && panel(t("Annotations"), {}, jsonView(job.annotations, t("Annotations"))),
    job.headers && Object.keys(job.headers).length > 0 && panel(t("Headers"), {}, jsonView(job.headers, t("Headers"))),
    job.options && Object.keys(job.options).length > 0 && panel(t("Options"), {}, jsonView(job.options, t("Options"))),
  ];
}
