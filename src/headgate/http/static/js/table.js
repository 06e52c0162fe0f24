/**
 * Tables whose rows keep their place while they change; on a narrow screen each row is a card.
 *
 * A row of a table with the class `two-line` has two lines there: its main cell (`main-cell`, or the first one) and the one
 * with `lead-cell`, then the others, without those with `wide-cell`. It is one target: the link of its main cell.
 */

import { COLUMNS } from "./columns.js";
import { classes, h } from "./dom.js";
import * as format from "./format.js";
import { columnLabel, t } from "./language.js";
import { badge, breakable, countdown, when } from "./parts.js";

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

/** How a value of each kind looks. @type {Record<string, {show: (value: any) => import("./dom.js").Children, align?: "right", extra?: string}>} */
const KINDS = {
  text: { show: (value) => breakable(String(value)) },
  names: { show: (value) => value.join(", ") },
  count: { show: format.count, align: "right" },
  duration: { show: format.duration, align: "right" },
  rate: { show: format.perTime, align: "right" },
  share: { show: format.share, align: "right" },
  age: { show: (value) => t("{time} ago", { time: format.duration(value) }), align: "right" },
  time: { show: when, align: "right", extra: "time-cell" },
  until: { show: (value) => countdown(value), align: "right", extra: "time-cell" },
  state: { show: (value) => badge(value), extra: "lead-cell" },
  id: { show: (value) => h("span", { class: "mono", title: value }, format.shortId(value)) },
};

/**
 * The declared columns of a list. `cells` has the columns whose cells need more than their kind, such as a link: a
 * function that returns the cell, or whatever else differs.
 *
 * @param {string} list @param {any[]} rows
 * @param {Record<string, ((row: any) => import("./dom.js").Children) | Partial<Column<any>>>} cells
 * @returns {Column<any>[]}
 */
export function declared(list, rows, cells) {
  const isPresent = (/** @type {any} */ value) => value !== null && value !== "" && value?.length !== 0;
  return (COLUMNS[list] ?? [])
    .filter(({ name, is_rare }) => !is_rare || rows.some((row) => isPresent(row[name])))
    .map(({ name, label, kind }) => {
      const { show, ...place } = KINDS[kind];
      const cell = (/** @type {any} */ row) => (isPresent(row[name]) ? show(row[name]) : h("span", { class: "faint" }, "–"));
      const own = cells[name];
      return { name: columnLabel(label), cell, ...place, ...(typeof own === "function" ? { cell: own } : own) };
    });
}

/** @template T @param {Table<T>} table */
export function table({ label, columns, rows, key, selected, onSelect, tone, extra, empty }) {
  const shown = columns.filter((column) => !column.isHidden);
  const main = shown.find((column) => column.extra?.includes("main-cell")) ?? shown[0];
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
                  class: classes(column.align === "right" && "right num", column.extra, column === main && "main-cell"),
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

/**
 * A table of what is not idle; the rest is folded below it, and shown at once if everything is idle.
 *
 * @template T @param {Table<T>} all @param {(row: T) => boolean} isIdle @param {(count: number) => string} summary of the fold
 */
export function busyTable(all, isIdle, summary) {
  const idle = all.rows.filter(isIdle);
  const busy = all.rows.filter((row) => !isIdle(row));
  if (!idle.length || !busy.length) return table(all);
  return [
    table({ ...all, rows: busy }),
    h("details", { class: "idle-rows", key: "idle" }, h("summary", null, summary(idle.length)), table({ ...all, label: summary(idle.length), rows: idle })),
  ];
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
  // The label makes the target larger where fingers need that.
  return h("label", { class: "select-box" }, h("input", {
    type: "checkbox",
    "aria-label": t("Select {id}", { id }),
    checked: selected.has(id),
    onchange: () => {
      const next = new Set(selected);
      if (!next.delete(id)) next.add(id);
      onSelect(next);
    },
  }));
}
