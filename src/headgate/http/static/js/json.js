/** JSON as people read it: indented, coloured, foldable; every value is text. */

import { h } from "./dom.js";
import { copyButton } from "./parts.js";

const MOST = 200;

/** @param {any} value @param {string} name what it is, for the button that copies it */
export function jsonView(value, name) {
  return h(
    "div",
    { class: "json", tabindex: "0", role: "group", "aria-label": name },
    copyButton(JSON.stringify(value, null, 2), name.toLowerCase()),
    h("div", { class: "json-body mono" }, shown(value, 0)),
  );
}

/** @param {any} value @param {number} depth @returns {import("./dom.js").Children} */
function shown(value, depth) {
  if (value === null) return h("span", { class: "json-null" }, "null");
  if (typeof value === "string")
    return h(
      "span",
      { class: value === "[redacted]" ? "json-hidden" : "json-string" },
      value === "[redacted]" ? "redacted" : JSON.stringify(value),
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
  const more = entries.length - MOST;
  return h(
    "details",
    { open: depth < 4 },
    h(
      "summary",
      null,
      opens,
      h("span", { class: "json-count" }, isList ? `${entries.length} items` : `${entries.length} fields`),
      h("span", { class: "json-closed" }, closes),
    ),
    h(
      "div",
      { class: "json-inside" },
      entries
        .slice(0, MOST)
        .map(([name, each]) =>
          h(
            "div",
            { key: name, class: "json-line" },
            h("span", { class: isList ? "json-place" : "json-name" }, String(name)),
            ": ",
            shown(each, depth + 1),
          ),
        ),
      more > 0 && h("div", { class: "json-count" }, `… ${more} more`),
    ),
    closes,
  );
}
