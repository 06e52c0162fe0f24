/** The help dialog: keyboard shortcuts and job states. */

import { ask } from "./dialogs.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { t, word } from "./language.js";

/** @param {[string, string, string][]} pages name, address, second key after g */
export function help(pages) {
  const keys = [
    ["/", t("Find anything; also Ctrl K")],
    ...pages.map(([name, , key]) => [`g ${key}`, t("Go to {name}", { name })]),
    ["p", t("Pause or resume live updates")],
    ["?", t("Show this help")],
    ["Esc", t("Close a dialog or the menu")],
  ];
  const states = [
    ["ready", t("Waits only for a free slot on a node")],
    ["throttled", t("Waits for a limit, and keeps its position in its lane")],
    ["scheduled", t("Waits for its scheduled time or its next attempt")],
    ["blocked", t("Waits for another job or a batch to finish")],
    ["running", t("Runs on a node")],
    ["succeeded", t("Finished with a result")],
    ["failed", t("Finished with an error")],
    ["cancelled", t("Cancelled before it succeeded or failed")],
    ["skipped", t("Not needed after what it follows")],
  ];
  return ask({
    title: t("Help"),
    wide: true,
    body: [
      h("h3", null, t("Keyboard shortcuts")),
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
        t("For programs:"),
        " ",
        h("a", { href: "api/v1/openapi.json" }, t("REST API description")),
        " (OpenAPI).",
      ),
      h("h3", null, t("Job states")),
      h(
        "dl",
        { class: "keys" },
        states.map(([state, meaning]) =>
          h(
            "div",
            { key: state },
            h("dt", null, h("span", { class: `badge state-${state}` }, icon(state), word(state))),
            h("dd", null, meaning),
          ),
        ),
      ),
    ],
  });
}
