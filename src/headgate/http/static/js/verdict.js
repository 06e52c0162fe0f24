/** The verdict of an overview: one to three sentences, worst first, each a link. */

import { h } from "./dom.js";
import * as format from "./format.js";
import { icon } from "./icons.js";
import { t } from "./language.js";
import { bucketHref, startWorker } from "./parts.js";
import { address } from "./router.js";

/** @param {any[]} sentences as in the overview */
export function verdict(sentences) {
  return h(
    "ul",
    { class: "verdict", key: "verdict", "aria-label": t("Verdict") },
    sentences.map((each) =>
      h(
        "li",
        { key: `${each.kind} ${each.name}`, class: `verdict-${each.tone}` },
        icon(each.tone === "good" ? "succeeded" : each.tone === "info" ? "waiting" : "warning"),
        h("a", { href: target(each) }, sentence(each)),
        each.kind === "no_worker" && h("span", { class: "verdict-command" }, t("Start a worker:"), " ", h("code", null, startWorker())),
      ),
    ),
  );
}

/** @param {any} said */
function target({ kind, name, key }) {
  switch (kind) {
    case "no_worker":
      return address(["jobs"], name === "ready" ? { view: "ready" } : { state: "waiting" });
    case "workers_silent":
    case "workers_quiet":
      return "nodes";
    case "undeclared":
      return "tasks";
    case "queue_paused":
    case "lag":
      return address(["queues", name]);
    case "limit_paused":
      return address(["limits", name]);
    case "limit":
      return key === null ? address(["limits", name]) : bucketHref(name, key);
    case "overdue":
      return "schedules";
    case "retrying":
    case "failed":
      return "failures";
    case "ready":
      return address(["jobs"], { view: "ready" });
    case "idle":
    case "counting":
      return "jobs";
    default:
      return "overview";
  }
}

/** A sentence in the language of the page. @param {any} said @returns {string} */
function sentence(said) {
  const { kind, name, at, seconds, more } = said;
  const count = said.count ?? 0;
  switch (kind) {
    case "store_silent":
      return t("The store has not answered since {time}.", { time: format.clock(at) });
    case "no_worker": {
      const none = more ? t("No worker responds.") : t("No worker is running.");
      if (!count) return none;
      return `${none} ${name === "ready" ? format.plural(count, "job is ready.", "jobs are ready.") : format.plural(count, "job waits.", "jobs wait.")}`;
    }
    case "alerts":
      return `${format.plural(count, "alert is firing:", "alerts are firing:")} ${name}`;
    case "blocked":
      return t("A database session has delayed the store for {duration}.", { duration: format.duration(seconds) });
    case "workers_silent":
      return format.plural(count, "worker does not respond.", "workers do not respond.");
    case "workers_quiet":
      return format.plural(count, "worker is quiet and claims no jobs; no other is running.", "workers are quiet and claim no jobs; no other is running.");
    case "undeclared":
      return format.plural(count, "job waits for a worker that serves the queue and declares the task.", "jobs wait for a worker that serves the queue and declares the task.");
    case "queue_paused":
      return `${t("Queue {name} is paused.", { name })} ${format.plural(count, "job waits.", "jobs wait.")}`;
    case "limit_paused":
      return `${t("Limit {name} is paused.", { name })} ${format.plural(count, "job waits.", "jobs wait.")}`;
    case "lag":
      return t("Jobs in queue {name} wait {duration} for a free slot.", { name, duration: format.duration(seconds) });
    case "limit":
      return limitSentence(said);
    case "overdue":
      return format.plural(count, "schedule is overdue.", "schedules are overdue.");
    case "retrying":
      return t("In the last 5 minutes {attempts}; {jobs}.", {
        attempts: format.plural(count, "attempt failed and will be retried", "attempts failed and will be retried"),
        jobs: format.plural(more, "job succeeded", "jobs succeeded"),
      });
    case "failed":
      return more
        ? t("More than {count} jobs failed in the last hour.", { count: format.count(count) })
        : format.plural(count, "job failed in the last hour.", "jobs failed in the last hour.");
    case "counting":
      return t("Jobs are being counted.");
    case "ready":
      return format.plural(count, "job is ready for a free slot.", "jobs are ready for a free slot.");
    default:
      if (!count && !more) return t("Nothing waits.");
      return [
        t("Nothing waits for a slot or a limit."),
        ...(count ? [format.plural(count, "job waits for its time.", "jobs wait for their time.")] : []),
        ...(more ? [format.plural(more, "job waits for another job.", "jobs wait for another job.")] : []),
      ].join(" ");
  }
}

/** @param {any} said */
function limitSentence({ count, name, key, at }) {
  const wait = format.plural(count, "key waits for {limit}", "keys wait for {limit}").replace("{limit}", () => name);
  if (key === null) return `${wait}.`;
  const shown = format.keyName(key);
  return at
    ? t("{wait}; {key} is clear at {time}.", { wait, key: shown, time: format.clock(at) })
    : t("{wait}; {key} has the most jobs.", { wait, key: shown });
}
