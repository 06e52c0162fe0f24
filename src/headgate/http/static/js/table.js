/** Tables: rows that stay in place while they change, and become cards where there is little room. */

import { classes, h } from "./dom.js";

/**
 * @template T
 * @typedef {{name: string, cell: (row: T) => import("./dom.js").Children, align?: "right", extra?: string, isHidden?: boolean}} Column
 */

/**
 * @template T
 * @typedef {{
 *   label: string, columns: Column<T>[], rows: T[], key: (row: T) => string | number,
 *   chosen?: Set<string | number>, onChoose?: (chosen: Set<string | number>) => void,
 *   tone?: (row: T) => string, empty?: import("./dom.js").Children,
 * }} Table
 */

/** @template T @param {Table<T>} table */
export function table({ label, columns, rows, key, chosen, onChoose, tone, empty }) {
  const shown = columns.filter((column) => !column.isHidden);
  if (!rows.length && empty) return h("div", { key: "none" }, empty);
  const choose = chosen && onChoose ? { chosen, onChoose } : null;
  return h(
    "div",
    { class: "table-wrap", key: "table" },
    h(
      "table",
      { class: "table", "aria-label": label, role: "table" },
      h(
        "thead",
        { role: "rowgroup" },
        h(
          "tr",
          { role: "row" },
          choose &&
            h(
              "th",
              { key: "choose", role: "columnheader", scope: "col", class: "choose" },
              allBox(choose, rows.map(key), label),
            ),
          shown.map((column) =>
            h(
              "th",
              {
                key: column.name,
                role: "columnheader",
                scope: "col",
                class: classes(column.align === "right" && "right", column.extra),
              },
              column.name,
            ),
          ),
        ),
      ),
      h(
        "tbody",
        { role: "rowgroup" },
        rows.map((row) => {
          const id = key(row);
          const isChosen = choose?.chosen.has(id) ?? false;
          return h(
            "tr",
            { key: id, role: "row", class: classes(tone?.(row), isChosen && "chosen") },
            choose && h("td", { key: "choose", role: "cell", class: "choose" }, oneBox(choose, id)),
            shown.map((column) =>
              h(
                "td",
                {
                  key: column.name,
                  role: "cell",
                  class: classes(column.align === "right" && "right num", column.extra),
                  "data-label": column.name,
                },
                h("div", { class: "cell" }, column.cell(row)),
              ),
            ),
          );
        }),
      ),
    ),
  );
}

/** @typedef {{chosen: Set<string | number>, onChoose: (chosen: Set<string | number>) => void}} Choice */

/** @param {Choice} choice @param {(string | number)[]} ids @param {string} label */
function allBox({ chosen, onChoose }, ids, label) {
  const many = ids.filter((id) => chosen.has(id)).length;
  return h("input", {
    type: "checkbox",
    "aria-label": `Choose all of this page: ${label}`,
    checked: many > 0 && many === ids.length,
    indeterminate: many > 0 && many < ids.length,
    onchange: () => onChoose(many === ids.length ? new Set() : new Set(ids)),
  });
}

/** @param {Choice} choice @param {string | number} id */
function oneBox({ chosen, onChoose }, id) {
  return h("input", {
    type: "checkbox",
    "aria-label": `Choose ${id}`,
    checked: chosen.has(id),
    onchange: () => {
      const next = new Set(chosen);
      if (!next.delete(id)) next.add(id);
      onChoose(next);
    },
  });
}
