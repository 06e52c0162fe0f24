/** Input fields for filters and dialogs, each with its label. */

import { h } from "./dom.js";

let lastId = 0;
/** Element ids by label. @type {Map<string, string>} */
const idsByLabel = new Map();

/** @param {string} label */
function idOf(label) {
  const id = idsByLabel.get(label) ?? `field-${(lastId += 1)}`;
  idsByLabel.set(label, id);
  return id;
}

/**
 * What the fields of a form call: each sets its value, and shows the form again, without the error of the last try.
 *
 * @param {any} form @param {() => void} update
 */
export function setter(form, update) {
  return (/** @type {string} */ name) => (/** @type {any} */ value) => {
    form[name] = value;
    form.error = "";
    update();
  };
}

/**
 * A text field that calls `changed` on Enter and when it loses the focus.
 *
 * @param {string} label @param {string} value @param {string} placeholder @param {(value: string) => void} changed
 * @param {string[]} [suggestions]
 */
export function text(label, value, placeholder, changed, suggestions) {
  const list = suggestions ? `${idOf(label)}-suggestions` : null;
  const onchange = (/** @type {any} */ event) => changed(event.target.value.trim());
  return entry(
    "input",
    label,
    { type: "text", value, placeholder, list, onchange },
    "",
    suggestions &&
      h(
        "datalist",
        { id: list },
        suggestions.map((each) => h("option", { key: each, value: each })),
      ),
  );
}

/** The attributes of a field with an error, and the error below it. @param {string} id @param {string} error */
function refusal(id, error) {
  const props = error ? { "aria-invalid": "true", "aria-describedby": `${id}-error` } : { "aria-invalid": null, "aria-describedby": null };
  return { props, below: error && h("p", { class: "bad-text", id: `${id}-error`, role: "alert" }, error) };
}

/** A text field that calls `changed` on every keystroke; `error` is shown below it. @param {string} label @param {string} value @param {string} placeholder @param {(value: string) => void} changed @param {Record<string, any>} [props] @param {string} [error] */
export function input(label, value, placeholder, changed, props = {}, error = "") {
  const oninput = (/** @type {any} */ event) => changed(event.target.value.trim());
  return entry("input", label, { type: "text", value, placeholder, oninput, ...props }, error);
}

/** @param {string} label @param {boolean} isSet @param {(isSet: boolean) => void} changed */
export function checkbox(label, isSet, changed) {
  const id = idOf(label);
  return h(
    "div",
    { class: "field field-check", key: label },
    h("input", { id, type: "checkbox", checked: isSet, onchange: (/** @type {any} */ event) => changed(event.target.checked) }),
    h("label", { for: id }, label),
  );
}

/** @param {string} label @param {string} value @param {[string, string][]} choices @param {(value: string) => void} changed @param {{error?: string, props?: Record<string, any>}} [rest] */
export function select(label, value, choices, changed, { error = "", props = {} } = {}) {
  const id = idOf(label);
  return h(
    "div",
    { class: "field", key: label },
    h("label", { for: id }, label),
    h(
      "select",
      { id, value, onchange: (/** @type {any} */ event) => changed(event.target.value), ...refusal(id, error).props, ...props },
      choices.map(([each, name]) => h("option", { key: each, value: each }, name)),
    ),
    refusal(id, error).below,
  );
}

/** A field of several lines that calls `changed` on every keystroke; `error` is shown below it. @param {string} label @param {string} value @param {string} placeholder @param {(value: string) => void} changed @param {string} [error] */
export function area(label, value, placeholder, changed, error = "", props = {}) {
  const oninput = (/** @type {any} */ event) => changed(event.target.value);
  return entry("textarea", label, { value, placeholder, class: "mono", rows: "8", oninput, ...props }, error);
}

/** A field that text is typed into. @param {string} tag @param {string} label @param {Record<string, any>} props @param {string} error @param {import("./dom.js").Children} [below] */
function entry(tag, label, props, error, below) {
  const id = idOf(label);
  return h(
    "div",
    { class: "field", key: label },
    h("label", { for: id }, label),
    h(tag, { id, autocomplete: "off", spellcheck: "false", ...refusal(id, error).props, ...props }),
    refusal(id, error).below,
    below,
  );
}
