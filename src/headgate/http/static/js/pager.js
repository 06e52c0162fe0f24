/** From page to page: lists are read by cursor, so that a page stays itself while jobs come and go. */

import { h } from "./dom.js";
import { icon } from "./icons.js";

/** @param {import("./page.js").Context} context @param {import("./dom.js").Children} [said] @param {string} [cursor] the parameter's name */
export function pager(context, said, cursor = "before") {
  const { data, route, ui } = context;
  const at = route.query.get(cursor);
  if (at === null && !data.next) return null;
  /** The cursors of the pages before this one, as far as this visit has seen them. @type {(string | null)[]} */
  const trail = (ui.trail ??= []);
  const next = () => {
    trail.push(at);
    context.setQuery({ [cursor]: data.next });
  };
  const first = () => {
    trail.length = 0;
    context.setQuery({ [cursor]: null });
  };
  return h(
    "nav",
    { class: "pager", "aria-label": "Pages of the list", key: "pager" },
    h("span", { class: "pager-said" }, said),
    h("button", { type: "button", disabled: at === null, onclick: first }, "First"),
    h(
      "button",
      { type: "button", disabled: !trail.length, onclick: () => context.setQuery({ [cursor]: trail.pop() ?? null }) },
      icon("left"),
      "Previous",
    ),
    h("button", { type: "button", disabled: !data.next, onclick: next }, "Next", icon("chevron")),
  );
}
