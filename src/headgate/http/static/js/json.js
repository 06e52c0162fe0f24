/** A JSON viewer: indented, coloured, foldable. Every value is shown as text. */

import { h } from "./dom.js";
import { count, plural } from "./format.js";
import { t } from "./language.js";
import { copyButton } from "./parts.js";

/** Entries shown of one list or object. */
const MAX_ENTRIES = 200;

/** @param {any} value @param {string} name for the copy button */
export function jsonView(value, name) {
  return h(
    "div",
    { class: "json", tabindex: "0", role: "group", "aria-label": name },
    copyButton(JSON.stringify(value, null, 2), name),
    h("div", { class: "json-body mono" }, view(value, 0)),
  );
}

/** @param {any} value @param {number} depth @returns {import("./dom.js").Children} */
function view(value, depth) {
  if (value === null) return h("span", { class: "json-null" }, "null");
  if (typeof value === "string")
    return h(
      "span",
      { class: value === "[redacted]" ? "json-hidden" : "json-string" },
      value === "[redacted]" ? t("redacted") : JSON.stringify(value),
    );
  if (typeof value !== "object" || /** @type {any} */ (JSON).isRawJSON?.(value)) {
    return h("span", { class: "json-number" }, JSON.stringify(value));
  }
  const isList = Array.isArray(value);
  const [opens, closes] = isList ? ["[", "]"] : ["{", "}"];
  const entries = isList
    ? value.map((each, at) => /** @type {[string | number, any]} */ ([at, each]))
    : Object.entries(value);
  if (!entries.length) return h("span", { class: "json-null" }, `${opens}${closes}`);
  const more = entries.length - MAX_ENTRIES;
  return h(
    "details",
    { open: depth < 4 },
    h(
      "summary",
      null,
      opens,
      h("span", { class: "json-count" }, isList ? plural(entries.length, "item") : plural(entries.length, "field")),
      h("span", { class: "json-closed" }, closes),
    ),
    h(
      "div",
      { class: "json-inside" },
      entries
        .slice(0, MAX_ENTRIES)
        .map(([name, each]) =>
          h(
            "div",
            { key: name, class: "json-line" },
            h("span", { class: isList ? "json-place" : "json-name" }, String(name)),
            ": ",
            view(each, depth + 1),
          ),
        ),
      more > 0 && h("div", { class: "json-count" }, `… ${t("{count} more", { count: count(more) })}`),
    ),
    closes,
  );
}
