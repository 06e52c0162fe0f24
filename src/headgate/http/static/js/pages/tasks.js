/** Tasks: those that this app declares, with what they do now; those whose jobs fail come first. */

import { activityHint, failuresCell, throughputCell } from "../activity.js";
import { get } from "../api.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { t } from "../language.js";
import { breakable, copyCommand, empty, heading, link, nameLinks, panel } from "../parts.js";
import { address } from "../router.js";
import { busyTable, declared } from "../table.js";
import { countedAgo } from "./overview.js";

/** @type {import("../page.js").PageDefinition} */
export const tasks = {
  title: () => t("Tasks"),
  every: 10_000,
  load: (_, signal) => get("tasks", {}, signal),
  view: ({ data }) => [
    heading(t("Tasks"), { actions: copyCommand(command("tasks")) }),
    panel(
      t("Declared tasks"),
      { class: "bare", hint: [data.items.length > 0 && format.plural(data.items.length, "task"), activityHint(data), countedAgo(data)].filter(Boolean).join(", ") },
      busyTable({
        label: t("Tasks"),
        rows: [...data.items].sort(byTrouble),
        key: (task) => task.task,
        extra: "two-line",
        empty: empty(t("No tasks"), t("This app declares no task.")),
        columns: [
          ...declared("tasks", data.items, {
            task: (task) => link(address(["tasks", task.task]), h("b", null, breakable(task.task))),
            queue: (task) => link(address(["queues", task.queue]), breakable(task.queue)),
            limits: { extra: "wide-cell", cell: (task) => nameLinks("limits", task.limits, t("none")) },
            throughput: { extra: "lead-cell", cell: (task) => throughputCell(task, { task: task.task }) },
            run_p95: { extra: "wide-cell" },
            requires: { extra: "wide-cell" },
            tags: { extra: "wide-cell" },
            unique_key: { extra: "wide-cell" },
            failure_share: (task) => failuresCell(task, { task: task.task }),
            waiting: (task) =>
              h(
                "a",
                { href: address(["jobs"], { task: task.task, state: "waiting" }), class: task.waiting ? "" : "faint" },
                task.waiting === null ? "–" : format.bounded(task.waiting, data.is_exact),
              ),
          }),
        ],
      }, isIdle, (count) => format.plural(count, "idle task")),
    ),
  ],
};

/** Whether no job of a task waits or has ended lately. @param {any} task */
function isIdle(task) {
  return !task.waiting && !task.throughput && task.waiting !== null;
}

/** Those first that fail most; the others keep their order, by name. @param {any} one @param {any} other */
function byTrouble(one, other) {
  return (other.failure_share ?? 0) - (one.failure_share ?? 0);
}
