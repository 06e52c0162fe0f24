/** Tables whose rows keep their place while they change; on a narrow screen each row is a card. */

import { classes, h } from "./dom.js";
import { t } from "./language.js";

/**
 * @template T
 * @typedef {{name: string, cell: (row: T) => import("./dom.js").Children, align?: "right", extra?: string, isHidden?: boolean}} Column
 */

/**
 * @template T
 * @typedef {{
 *   label: string, columns: Column<T>[], rows: T[], key: (row: T) => string | number,
 *   selected?: Set<string | number>, onSelect?: (selected: Set<string | number>) => void,
 *   tone?: (row: T) => string, extra?: string, empty?: import("./dom.js").Children,
 * }} Table
 */

/** @template T @param {Table<T>} table */
export function table({ label, columns, rows, key, selected, onSelect, tone, extra, empty }) {
  const shown = columns.filter((column) => !column.isHidden);
  if (!rows.length && empty) return h("div", { key: "none" }, empty);
  const selection = selected && onSelect ? { selected, onSelect } : null;
  return h(
    "div",
    { class: "table-wrap", key: "table" },
    h(
      "table",
      { class: classes("table", extra), "aria-label": label, role: "table" },
      h(
        "thead",
        { role: "rowgroup" },
        h(
          "tr",
          { role: "row" },
          selection &&
            h(
              "th",
              { key: "select", role: "columnheader", scope: "col", class: "select-cell" },
              selectAllBox(selection, rows.map(key), label),
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
          const isSelected = selection?.selected.has(id) ?? false;
          return h(
            "tr",
            { key: id, role: "row", class: classes(tone?.(row), isSelected && "selected") },
            selection && h("td", { key: "select", role: "cell", class: "select-cell" }, selectBox(selection, id)),
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

/** @typedef {{selected: Set<string | number>, onSelect: (selected: Set<string | number>) => void}} Selection */

/** @param {Selection} selection @param {(string | number)[]} ids @param {string} label */
function selectAllBox({ selected, onSelect }, ids, label) {
  const count = ids.filter((id) => selected.has(id)).length;
  return h("input", {
    type: "checkbox",
    "aria-label": t("Select all on this page: {label}", { label }),
    checked: count > 0 && count === ids.length,
    indeterminate: count > 0 && count < ids.length,
    onchange: () => onSelect(count === ids.length ? new Set() : new Set(ids)),
  });
}

/** @param {Selection} selection @param {string | number} id */
function selectBox({ selected, onSelect }, id) {
  return h("input", {
    type: "checkbox",
    "aria-label": t("Select {id}", { id }),
    checked: selected.has(id),
    onchange: () => {
      const next = new Set(selected);
      if (!next.delete(id)) next.add(id);
      onSelect(next);
    },
  });
}
