/** Paging by cursor, so that a page keeps its content while jobs are added and removed. */

import { h } from "./dom.js";
import { icon } from "./icons.js";
import { t } from "./language.js";

/** @param {import("./page.js").Context} context @param {import("./dom.js").Children} [note] @param {string} [cursor] the parameter's name */
export function pager(context, note, cursor = "before") {
  const { data, route, ui } = context;
  const list = JSON.stringify([...route.query].filter(([name]) => name !== cursor));
  const at = route.query.get(cursor);
  if (at === null && !data.next) return null;
  /** For each list of this visit: the cursors of its pages, from one that was opened by its address. @type {Record<string, (string | null)[]>} */
  const trails = (ui.trails ??= {});
  if (!trails[list]?.includes(at)) trails[list] = [at];
  const trail = trails[list];
  const here = trail.indexOf(at);
  const next = () => {
    trail.splice(here + 1, trail.length, data.next);
    context.setQuery({ [cursor]: data.next });
  };
  return h(
    "nav",
    { class: "pager", "aria-label": t("Pages of the list"), key: "pager" },
    h("span", { class: "pager-note" }, note),
    h("button", { type: "button", disabled: at === null, onclick: () => context.setQuery({ [cursor]: null }) }, t("First")),
    h(
      "button",
      { type: "button", disabled: here === 0, onclick: () => context.setQuery({ [cursor]: trail[here - 1] }) },
      icon("left"),
      t("Previous"),
    ),
    h("button", { type: "button", disabled: !data.next, onclick: next }, t("Next"), icon("chevron")),
  );
}
