/** The page for unknown addresses. */

import { h } from "../dom.js";
import { t, withElements } from "../language.js";
import { empty, heading, link } from "../parts.js";

/** @type {import("../page.js").PageDefinition} */
export const missing = {
  title: () => t("Not found"),
  load: async () => ({}),
  view: ({ route }) => [
    heading(t("Not found")),
    h(
      "div",
      { class: "panel" },
      empty(t("No page “{path}”", { path: route.params.path }), 
        withElements("Go to the {overview}, or press {key} to find a job.", {
          overview: link("overview", t("overview")),
          key: h("kbd", null, "/"),
        }),
      ),
    ),
  ],
};
