/** The page for unknown addresses. */

import { h } from "../dom.js";
import { empty, heading, link } from "../parts.js";

/** @type {import("../page.js").PageDefinition} */
export const missing = {
  title: () => "Not found",
  load: async () => ({}),
  view: ({ route }) => [
    heading("Not found"),
    h(
      "div",
      { class: "panel" },
      empty(`No page “${route.params.path}”`, [
        "Go to the ",
        link("overview", "overview"),
        ", or press ",
        h("kbd", null, "/"),
        " to find a job.",
      ]),
    ),
  ],
};
