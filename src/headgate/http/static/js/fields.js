/** Fields of filters and dialogs, each with its label. */

import { h } from "./dom.js";

let ids = 0;
/** @type {Map<string, string>} */
const known = new Map();

/** @param {string} label */
function idOf(label) {
  const found = known.get(label) ?? `field-${(ids += 1)}`;
  known.set(label, found);
  return found;
}

/**
 * A line of text, told when it is left or Enter is pressed.
 *
 * @param {string} label @param {string} value @param {string} placeholder @param {(value: string) => void} changed
 * @param {string[]} [known] what may be chosen from
 */
export function text(label, value, placeholder, changed, known) {
  const id = idOf(label);
  return h(
    "div",
    { class: "field", key: label },
    h("label", { for: id }, label),
    h("input", {
      id,
      type: "text",
      value,
      placeholder,
      autocomplete: "off",
      spellcheck: "false",
      list: known ? `${id}-known` : null,
      onchange: (/** @type {any} */ event) => changed(event.target.value.trim()),
    }),
    known &&
      h(
        "datalist",
        { id: `${id}-known` },
        known.map((each) => h("option", { key: each, value: each })),
      ),
  );
}

/** The same, told with every key. @param {string} label @param {string} value @param {string} placeholder @param {(value: string) => void} changed */
export function input(label, value, placeholder, changed, props = {}) {
  const id = idOf(label);
  return h(
    "div",
    { class: "field", key: label },
    h("label", { for: id }, label),
    h("input", {
      id,
      type: "text",
      value,
      placeholder,
      autocomplete: "off",
      spellcheck: "false",
      oninput: (/** @type {any} */ event) => changed(event.target.value.trim()),
      ...props,
    }),
  );
}

/** @param {string} label @param {string} value @param {[string, string][]} choices @param {(value: string) => void} changed */
export function select(label, value, choices, changed) {
  const id = idOf(label);
  return h(
    "div",
    { class: "field", key: label },
    h("label", { for: id }, label),
    h(
      "select",
      { id, value, onchange: (/** @type {any} */ event) => changed(event.target.value) },
      choices.map(([each, name]) => h("option", { key: each, value: each }, name)),
    ),
  );
}
