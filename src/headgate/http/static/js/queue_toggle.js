/** Pausing and resuming a queue. */

import { path } from "./api.js";
import { command } from "./commands.js";
import * as format from "./format.js";
import { t } from "./language.js";
import { button, effect } from "./parts.js";

/** @typedef {import("./page.js").Context} Context */

/** The button that pauses or resumes a queue. @param {Context} context @param {any} queue */
export function queueToggle(context, queue) {
  const name = queue.queue;
  const why = context.denied("operate");
  if (queue.paused_at) {
    return button(
      t("Resume"),
      { icon: "ready", kind: "small primary", why, name: t("Resume queue {name}", { name }) },
      () => void resumeQueue(context, name),
    );
  }
  return button(
    t("Pause"),
    { icon: "paused", kind: "small", why, name: t("Pause queue {name}", { name }) },
    () => void pauseQueue(context, queue),
  );
}

/** Ask, and pause a queue. @param {Context} context @param {{queue: string, running: number, waiting: number}} queue */
export function pauseQueue(context, { queue: name, running, waiting }) {
  return context.act({
    ...queueChange(name, "pause"),
    undo: queueChange(name, "resume"),
    question: {
      title: t("Pause queue {name}?", { name }),
      action: t("Pause the queue"),
      body: effect(
        [
          t("No job of this queue starts on any node until the queue is resumed."),
          ` ${format.plural(running, "running job continues", "running jobs continue")}. `,
          t("{jobs} in the queue, and so do new jobs.", { jobs: format.plural(waiting, "waiting job stays", "waiting jobs stay") }),
        ],
        command("queues", "pause", name),
      ),
    },
  });
}

/** @param {Context} context @param {string} name */
export function resumeQueue(context, name) {
  return context.act({ ...queueChange(name, "resume"), undo: queueChange(name, "pause") });
}

/** The change that pauses or resumes a queue. @param {string} name @param {"pause" | "resume"} verb */
export function queueChange(name, verb) {
  const done = verb === "pause" ? t("Queue {name} is paused", { name }) : t("Queue {name} is resumed", { name });
  return { path: path("queues", name, verb), done };
}
