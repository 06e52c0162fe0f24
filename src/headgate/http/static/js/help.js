/** The help: keys, and what the states of a job mean. */

import { ask } from "./dialogs.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";

/** @param {[string, string, string][]} pages name, address, second key after g */
export function help(pages) {
  const keys = [
    ["/", "Find a job"],
    ...pages.map(([name, , key]) => [`g ${key}`, `Go to ${name}`]),
    ["p", "Pause or follow what happens"],
    ["?", "This help"],
    ["Esc", "Close what is open"],
  ];
  const states = [
    ["ready", "It lacks nothing but a free slot of a node"],
    ["throttled", "A limit lets it start later; it keeps its place in line"],
    ["scheduled", "It waits for its time, or for its next try"],
    ["blocked", "It follows another job, or a batch, that is not final"],
    ["running", "A node runs it"],
    ["succeeded", "It is final, and has a result"],
    ["failed", "It is final: its last try ended with an error"],
    ["cancelled", "It is final: somebody cancelled it"],
  ];
  return ask({
    title: "Help",
    wide: true,
    body: [
      h("h3", null, "Keys"),
      h(
        "dl",
        { class: "keys" },
        keys.map(([key, what]) =>
          h(
            "div",
            { key },
            h(
              "dt",
              null,
              key.split(" ").map((each) => h("kbd", null, each)),
            ),
            h("dd", null, what),
          ),
        ),
      ),
      h(
        "p",
        null,
        "The same facts for programs: ",
        h("a", { href: "api/openapi.json" }, "the description of the API"),
        " (OpenAPI).",
      ),
      h("h3", null, "States of a job"),
      h(
        "dl",
        { class: "keys" },
        states.map(([state, what]) =>
          h(
            "div",
            { key: state },
            h("dt", null, h("span", { class: `badge state-${state}` }, icon(state), state)),
            h("dd", null, what),
          ),
        ),
      ),
    ],
  });
}
