/** Tasks: those that this app declares. */

import { get } from "../api.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { breakable, copyCommand, empty, heading, link, panel } from "../parts.js";
import { address } from "../router.js";
import { table } from "../table.js";

/** @type {import("../page.js").PageDefinition} */
export const tasks = {
  title: () => "Tasks",
  // What is declared does not change while the app runs.
  usesStream: true,
  load: (_, signal) => get("tasks", {}, signal),
  view: ({ data }) => [
    heading("Tasks", { actions: copyCommand(command("tasks")) }),
    panel(
      "Declared tasks",
      { class: "bare", hint: data.items.length ? format.plural(data.items.length, "name") : null },
      table({
        label: "Tasks",
        rows: data.items,
        key: (task) => task.task,
        extra: "compact",
        empty: empty("No tasks", "This app declares no task."),
        columns: [
          { name: "Task", cell: (task) => link(address(["tasks", task.task]), h("b", null, breakable(task.task))) },
          { name: "Queue", cell: (task) => link(address(["queues", task.queue]), breakable(task.queue)) },
          {
            name: "Limits",
            cell: (task) =>
              task.limits.length
                ? task.limits.map((/** @type {string} */ limit, /** @type {number} */ at) => [
                    at > 0 && ", ",
                    h("a", { key: limit, href: address(["limits", limit]) }, breakable(limit)),
                  ])
                : h("span", { class: "faint" }, "none"),
          },
          {
            name: "Jobs",
            cell: (task) => link(address(["jobs"], { task: task.task }), "Show jobs"),
          },
        ],
      }),
    ),
  ],
};
