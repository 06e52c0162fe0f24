/** What a job is, was given and gave. */

import { h } from "../dom.js";
import * as format from "../format.js";
import { jsonView } from "../json.js";
import { bucketLink, clock, facts, jobLink, link, panel, when } from "../parts.js";
import { address } from "../router.js";

/** @param {any} job */
export function about(job) {
  const { status } = job;
  const ran =
    status.started_at && status.finished_at
      ? (Date.parse(status.finished_at) - Date.parse(status.started_at)) / 1000
      : null;
  const waited = status.started_at ? (Date.parse(status.started_at) - Date.parse(status.run_at)) / 1000 : null;
  const both = (/** @type {string} */ at) => [
    h("span", { class: "num" }, clock(at)),
    h("span", { class: "faint" }, " · ", when(at)),
  ];
  /** @type {[string, import("../dom.js").Children][]} */
  const found = [
    ["Task", link(address(["jobs"], { task: status.task }), status.task)],
    ["Queue", link(address(["jobs"], { queue: status.queue }), status.queue)],
    ["Priority", String(status.priority)],
    ["Attempt", status.attempt ? String(status.attempt) : "none yet"],
    ["Enqueued", both(status.enqueued_at)],
    ["Due", both(status.run_at)],
  ];
  if (status.enqueued_by) found.push(["Enqueued by", h("span", { class: "mono" }, status.enqueued_by)]);
  if (status.started_at) found.push(["Started", both(status.started_at)]);
  if (waited !== null && waited >= 0 && status.attempt <= 1) found.push(["Waited", format.duration(waited)]);
  if (status.finished_at) found.push(["Finished", both(status.finished_at)]);
  if (ran !== null && ran >= 0) found.push(["Ran", format.duration(ran)]);
  if (job.node)
    found.push(["Node", link(address(["jobs"], { node: job.node }), h("span", { class: "mono" }, job.node))]);
  if (job.cancel_requested) found.push(["Asked to end", "yes"]);
  if (job.expires_at && status.state === "waiting") found.push(["Expires", both(job.expires_at)]);
  if (job.unique_key)
    found.push(["Unique key", link(address(["jobs"], { unique_key: job.unique_key }), job.unique_key)]);
  if (job.schedule) found.push(["Schedule", link(address(["schedules", job.schedule]), job.schedule)]);
  if (job.batch)
    found.push([
      "Batch",
      link(address(["batches", job.batch]), h("span", { class: "mono" }, format.shortId(job.batch))),
    ]);
  if (status.follows) found.push(["Follows", jobLink(status.follows)]);
  if (job.draws?.length)
    found.push([
      "Draws on",
      job.draws.map((/** @type {any} */ draw) =>
        h(
          "div",
          { key: `${draw.limit} ${draw.key}` },
          bucketLink(draw.limit, draw.key),
          draw.cost > 1 && h("span", { class: "faint" }, ` × ${draw.cost}`),
        ),
      ),
    ]);
  found.push(["Audit", job.audit]);
  return panel("About", {}, facts(found));
}

/** @param {any} job */
export function values(job) {
  const isDone = job.status.state === "succeeded";
  return [
    panel("Payload", {}, jsonView(job.payload ?? {}, "Payload")),
    isDone && panel("Result", {}, jsonView(job.result ?? null, "Result")),
    job.headers && Object.keys(job.headers).length > 0 && panel("Headers", {}, jsonView(job.headers, "Headers")),
    job.options && Object.keys(job.options).length > 0 && panel("Options", {}, jsonView(job.options, "Options")),
  ];
}
