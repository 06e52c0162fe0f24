/** The arguments of a task in a form: a field for each, by its type, or all of them as JSON. */

import { get, messageOf, parseJson, path } from "../api.js";
import { h } from "../dom.js";
import { area, checkbox, input, select, setter } from "../fields.js";
import { t } from "../language.js";
import { preferences } from "../prefs.js";

/** @typedef {{name: string, kind: string, is_required: boolean, is_nullable: boolean, default: any, choices: any[]}} Argument */

const HIDDEN = "[redacted]";
const INTEGER = /^-?\d+$/;
const NUMBER = /^-?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$/;

/** The names of the kinds in labels. @type {Record<string, string>} */
const KINDS = {
  text: t("text"),
  integer: t("integer"),
  number: t("number"),
  boolean: t("yes or no"),
  choice: t("choice"),
  datetime: t("date and time"),
  date: t("date"),
  time: t("time of day"),
  json: "JSON",
};

/** The arguments that a user writes for the task that is chosen in a form. */
export class ArgumentsForm {
  payload = "{}";
  error = "";
  isJson = false;
  /** Null until they are known. @type {Argument[] | null} */
  #arguments = null;
  /** What is written in each field. @type {Record<string, string>} */
  #values = {};
  /** Without a prototype: an argument may be named `constructor`. @type {Record<string, string>} */
  #errors = Object.create(null);
  #task = "";

  /** Read the arguments of another task. @param {string} task @param {() => void} update */
  async #choose(task, update) {
    this.#task = task;
    this.#arguments = null;
    this.#errors = Object.create(null);
    this.error = "";
    try {
      const { arguments: found } = await get(path("tasks", task));
      if (this.#task !== task) return;
      this.#arguments = found;
      this.#values = Object.fromEntries(found.map((/** @type {Argument} */ each) => [each.name, initial(each)]));
      this.payload = this.isJson ? template(found) : this.text;
    } catch {
      // Then they are written as JSON, and the server checks them.
      this.isJson = true;
    }
    update();
  }

  /** The arguments as JSON text, as far as they are written. */
  get text() {
    if (this.isJson || this.#arguments === null) return this.payload;
    return joined(this.#arguments.map((each) => [each, this.#part(each)]));
  }

  /** Return the arguments by name. Throws an Error, and has the errors of its fields, if they are not complete. @returns {any} */
  read() {
    this.#errors = Object.create(null);
    if (this.isJson || this.#arguments === null) return argumentsOf(this.payload) ?? {};
    for (const each of this.#arguments) {
      const part = this.#part(each);
      if (part instanceof Error) this.#errors[each.name] = part.message;
    }
    if (Object.keys(this.#errors).length) throw new Error("");
    return parseJson(this.text);
  }

  /** Show the errors of an answer at their fields. Returns whether all of them are shown there. @param {unknown} error */
  refuse(error) {
    const found = /** @type {{detail: string, pointer?: string}[]} */ (/** @type {any} */ (error)?.errors ?? []);
    if (this.isJson || this.#arguments === null) return false;
    const names = new Map(this.#arguments.map(({ name }) => [`/payload/${name.replaceAll("~", "~0").replaceAll("/", "~1")}`, name]));
    for (const { pointer, detail } of found) {
      const name = names.get(pointer ?? "");
      if (name !== undefined) this.#errors[name] = detail;
    }
    return found.length > 0 && Object.keys(this.#errors).length === found.length;
  }

  /** The fields for a task. @param {string} task @param {() => void} update */
  view(task, update) {
    if (task !== this.#task) void this.#choose(task, update);
    if (this.#arguments === null && !this.isJson) return h("p", { class: "faint", key: "arguments", role: "status" }, t("Loading"));
    const toggle = h(
      "button",
      { type: "button", class: "quiet small", key: "as", onclick: () => this.#toggle(update) },
      this.isJson ? t("Write the arguments in fields") : t("Write the arguments as JSON"),
    );
    const isEmpty = this.#arguments?.length === 0;
    return h(
      "fieldset",
      { class: "arguments", key: "arguments" },
      h("legend", null, t("Arguments"), this.#arguments !== null && !isEmpty && toggle),
      this.isJson
        ? argumentsField(this, update)
        : isEmpty
          ? h("p", { class: "faint", key: "none" }, t("The task has no arguments."))
          : this.#arguments?.map((each) => this.#field(each, update)),
      this.error && !this.isJson && h("p", { class: "bad-text", role: "alert", key: "error" }, this.error),
    );
  }

  /** @param {() => void} update */
  #toggle(update) {
    const names = this.#arguments ?? [];
    if (!this.isJson) {
      this.payload = pretty(this.text) ?? template(names);
      this.isJson = true;
    } else {
      const written = objectOf(this.payload);
      const values = written && names.map((each) => [each.name, Object.hasOwn(written, each.name) ? shown(each, written[each.name]) : initial(each)]);
      if (!written || Object.keys(written).some((name) => !names.some((each) => each.name === name))) {
        this.error = t("These arguments do not fit the fields: check their names and the JSON");
        update();
        return;
      }
      this.#values = Object.fromEntries(values ?? []);
      this.isJson = false;
    }
    this.error = "";
    update();
  }

  /** The JSON of what is written for an argument; null if it is left out. @param {Argument} argument @returns {string | null | Error} */
  #part(argument) {
    const { name, kind, is_required, is_nullable, choices } = argument;
    const text = this.#values[name] ?? "";
    if (!is_required && text === initial(argument)) return null;
    if (kind === "boolean") return text || (is_nullable ? "null" : "false");
    if (text === "" && is_nullable) return "null";
    if (text === "" && (is_required || kind !== "text")) return is_required ? new Error(t("Write a value")) : null;
    if (kind === "integer") return INTEGER.test(text) ? String(BigInt(text)) : new Error(t("Write an integer, such as 3"));
    if (kind === "number") return NUMBER.test(text) && Number.isFinite(Number(text)) ? JSON.stringify(Number(text)) : new Error(t("Write a number, such as 0.5"));
    if (kind === "choice") return JSON.stringify(choices[Number(text)]);
    if (kind === "datetime") return JSON.stringify(instantOf(text));
    if (kind !== "json") return JSON.stringify(text);
    try {
      parseJson(text);
      return text;
    } catch (error) {
      return new Error(t("This is not JSON: {error}", { error: messageOf(error) }));
    }
  }

  /** @param {Argument} argument @param {() => void} update */
  #field(argument, update) {
    const { name, kind, is_required, is_nullable, choices } = argument;
    const value = this.#values[name] ?? "";
    const error = this.#errors[name] ?? "";
    const label = [name, kind === "datetime" && preferences().zone === "utc" ? `${KINDS[kind]}, UTC` : KINDS[kind], !is_required && t("optional")]
      .filter(Boolean)
      .join(", ");
    const changed = (/** @type {string} */ text) => {
      this.#values[name] = text;
      delete this.#errors[name];
      update();
    };
    const props = { "aria-required": is_required ? "true" : null };
    const rest = { error, props };
    switch (kind) {
      case "boolean":
        if (!is_nullable) return checkbox(label, value === "true", (isSet) => changed(String(isSet)));
        return select(label, value, [["", "null"], ["true", t("yes")], ["false", t("no")]], changed, rest);
      case "choice": {
        const named = choices.map((each, at) => /** @type {[string, string]} */ ([String(at), String(each)]));
        return select(label, value, is_required || is_nullable ? [["", is_nullable ? "null" : t("choose one")], ...named] : named, changed, rest);
      }
      case "json":
        return area(label, value, "", changed, error, { ...props, rows: "3" });
      case "datetime":
        return input(label, value, "", changed, { ...props, type: "datetime-local", step: "1" }, error);
      case "date":
      case "time":
        return input(label, value, "", changed, { ...props, type: kind, step: kind === "time" ? "1" : null }, error);
      default:
        return input(label, value, is_nullable ? "null" : "", changed, { ...props, inputmode: { integer: "numeric", number: "decimal" }[kind] ?? null }, error);
    }
  }
}

/** The field of a job's arguments, with the error below it. @param {{payload: string, error: string}} form @param {() => void} update @param {string} [placeholder] @param {string} [error] */
export function argumentsField(form, update, placeholder = "", error = form.error) {
  return area(t("Arguments (JSON)"), form.payload, placeholder, setter(form, update)("payload"), error);
}

/** Return the arguments of a text; those of an empty one are null. Throws an Error that says what to write. @param {string} text */
export function argumentsOf(text) {
  if (!text.trim()) return null;
  let value;
  try {
    value = parseJson(text);
  } catch (error) {
    throw new Error(t("This is not JSON: {error}", { error: messageOf(error) }));
  }
  if (value === null || typeof value !== "object" || Array.isArray(value))
    throw new Error(t('Write an object of arguments by name: {"name": "value"}'));
  return value;
}

/** The text of arguments for their field; empty if they or a part of them are hidden. @param {any} payload */
export function argumentsText(payload) {
  if (typeof payload !== "object") return "";
  const text = JSON.stringify(payload ?? {}, null, 2);
  return text.includes(HIDDEN) ? "" : text;
}

/** What the field of an argument has at first. @param {Argument} argument */
function initial(argument) {
  return argument.is_required || argument.default === null ? (argument.kind === "boolean" && !argument.is_nullable ? "false" : "") : shown(argument, argument.default);
}

/** A value as the text of its field. @param {Argument} argument @param {any} value @returns {string} */
function shown({ kind, choices }, value) {
  if (value === null) return "";
  if (kind === "choice") return choices.includes(value) ? String(choices.indexOf(value)) : "";
  if (kind === "datetime") return localTime(value);
  return kind === "json" || typeof value === "object" ? (pretty(JSON.stringify(value)) ?? "") : String(value);
}

/** The text of required arguments, each with the value null. @param {Argument[]} names */
function template(names) {
  return JSON.stringify(Object.fromEntries(names.filter((each) => each.is_required).map((each) => [each.name, null])), null, 2);
}

/** @param {[Argument, string | null | Error][]} parts */
function joined(parts) {
  const written = parts.filter(([, part]) => part !== null && !(part instanceof Error));
  return `{${written.map(([{ name }, part]) => `${JSON.stringify(name)}: ${part}`).join(", ")}}`;
}

/** @param {string} text */
function pretty(text) {
  try {
    return JSON.stringify(parseJson(text), null, 2);
  } catch {
    return null;
  }
}

/** @param {string} text @returns {Record<string, any> | null} */
function objectOf(text) {
  try {
    return argumentsOf(text) ?? {};
  } catch {
    return null;
  }
}

/** The instant of a date and time in the preferred zone. @param {string} text */
function instantOf(text) {
  const at = new Date(text);
  // A field takes years of five digits; the server says that they are none.
  if (preferences().zone === "utc" || Number.isNaN(at.getTime())) return `${text}${text.length === 16 ? ":00" : ""}Z`;
  return at.toISOString();
}

/** An instant as the value of a field for a date and time in the preferred zone. @param {string} instant */
function localTime(instant) {
  const at = new Date(instant);
  if (Number.isNaN(at.getTime())) return "";
  const shift = preferences().zone === "utc" ? 0 : at.getTimezoneOffset() * 60_000;
  return new Date(at.getTime() - shift).toISOString().slice(0, 19);
}
