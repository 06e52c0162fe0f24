/** The button that pauses or resumes a queue. */

import { path } from "./api.js";
import { command } from "./commands.js";
import { h } from "./dom.js";
import * as format from "./format.js";
import { button } from "./parts.js";

/** @param {import("./page.js").Context} context @param {any} queue */
export function queueToggle(context, queue) {
  const name = queue.queue;
  const why = context.denied("operate");
  if (queue.paused_at) {
    return button(
      "Resume",
      { icon: "ready", kind: "small primary", why, name: `Resume queue ${name}` },
      () => void context.act({ path: path("queues", name, "resume"), done: `Queue ${name} is resumed` }),
    );
  }
  return button(
    "Pause",
    { icon: "paused", kind: "small", why, name: `Pause queue ${name}` },
    () =>
      void context.act({
        path: path("queues", name, "pause"),
        done: `Queue ${name} is paused`,
        question: {
          title: `Pause queue ${name}?`,
          action: "Pause the queue",
          body: [
            h(
              "p",
              null,
              "No job of this queue starts on any node until the queue is resumed. ",
              `${format.plural(queue.running, "running job continues", "running jobs continue")}. `,
              `${format.plural(queue.waiting, "waiting job stays", "waiting jobs stay")} in the queue, and so do new jobs.`,
            ),
            h("p", { class: "command-line" }, h("code", null, command("queues", "pause", name))),
          ],
        },
      }),
  );
}
