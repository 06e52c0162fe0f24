/** Paging by cursor, so that a page keeps its content while jobs are added and removed. */

import { h } from "./dom.js";
import { icon } from "./icons.js";
import { t } from "./language.js";

/** @param {import("./page.js").Context} context @param {import("./dom.js").Children} [note] @param {string} [cursor] the parameter's name */
export function pager(context, note, cursor = "before") {
  const { data, route, ui } = context;
  const at = route.query.get(cursor);
  if (at === null && !data.next) return null;
  /** The cursors of the previous pages that this visit opened. @type {(string | null)[]} */
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
    { class: "pager", "aria-label": t("Pages of the list"), key: "pager" },
    h("span", { class: "pager-note" }, note),
    h("button", { type: "button", disabled: at === null, onclick: first }, t("First")),
    h(
      "button",
      { type: "button", disabled: !trail.length, onclick: () => context.setQuery({ [cursor]: trail.pop() ?? null }) },
      icon("left"),
      t("Previous"),
    ),
    h("button", { type: "button", disabled: !data.next, onclick: next }, t("Next"), icon("chevron")),
  );
}
