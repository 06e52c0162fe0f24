/** The help dialog: keyboard shortcuts and job states. */

import { ask } from "./dialogs.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";

/** @param {[string, string, string][]} pages name, address, second key after g */
export function help(pages) {
  const keys = [
    ["/", "Find anything; also Ctrl K"],
    ...pages.map(([name, , key]) => [`g ${key}`, `Go to ${name}`]),
    ["p", "Pause or resume live updates"],
    ["?", "Show this help"],
    ["Esc", "Close a dialog or the menu"],
  ];
  const states = [
    ["ready", "Waits only for a free slot on a node"],
    ["throttled", "Waits for a limit, and keeps its position in its lane"],
    ["scheduled", "Waits for its scheduled time or its next attempt"],
    ["blocked", "Waits for another job or a batch to finish"],
    ["running", "Runs on a node"],
    ["succeeded", "Finished with a result"],
    ["failed", "Finished with an error"],
    ["cancelled", "Cancelled before it succeeded or failed"],
  ];
  return ask({
    title: "Help",
    wide: true,
    body: [
      h("h3", null, "Keyboard shortcuts"),
      h(
        "dl",
        { class: "keys" },
        keys.map(([key, action]) =>
          h(
            "div",
            { key },
            h(
              "dt",
              null,
              key.split(" ").map((each) => h("kbd", null, each)),
            ),
            h("dd", null, action),
          ),
        ),
      ),
      h(
        "p",
        null,
        "For programs: ",
        h("a", { href: "api/openapi.json" }, "REST API description"),
        " (OpenAPI).",
      ),
      h("h3", null, "Job states"),
      h(
        "dl",
        { class: "keys" },
        states.map(([state, meaning]) =>
          h(
            "div",
            { key: state },
            h("dt", null, h("span", { class: `badge state-${state}` }, icon(state), state)),
            h("dd", null, meaning),
          ),
        ),
      ),
    ],
  });
}
