/** The `headgate` commands that do what a page does. */

import { parseJson } from "./api.js";
import { t } from "./language.js";
import { quoted } from "./text.js";

/** The placeholder for an app whose name is unknown. */
const UNKNOWN_APP = "module:app";

let app = UNKNOWN_APP;

/** Set how the command line names the app. @param {string | null} name */
export function setApp(name) {
  app = name ?? UNKNOWN_APP;
}

/** A command with its app, which `demo` does not take. @param {...(string | null | undefined | false)} words */
export function command(...words) {
  const text = ["headgate", ...words.filter((word) => typeof word === "string")].map(quoted).join(" ");
  return words[0] === "demo" ? text : withApp(text);
}

/** What to do before a command works, if its app is unknown. @param {string} text */
export function commandHint(text) {
  const isIncomplete = app === UNKNOWN_APP && text.endsWith(` -A ${UNKNOWN_APP}`);
  return isIncomplete ? ` ${t("Write the name of your app in place of {placeholder}.", { placeholder: UNKNOWN_APP })}` : "";
}

/** Commands in backquotes; a quoted name in one may have backquotes, too. */
const COMMANDS = /`(headgate (?:'[^']*'|"[^"]*"|[^'"\x60])+)`/g;

/** A text of the API whose commands get the app. @param {string} text */
export function withAppInCommands(text) {
  return text.replace(COMMANDS, (_, found) => `\`${withApp(found)}\``);
}

/** Arguments of a job as one line for a command; a text that is not JSON stays as it is. @param {string} text */
export function oneLine(text) {
  try {
    return JSON.stringify(parseJson(text));
  } catch {
    return text;
  }
}

/** @param {string} text */
function withApp(text) {
  return `${text} -A ${quoted(app)}`;
}

/** The command options for a job filter. @param {Record<string, string>} filter */
export function filterOptions(filter) {
  return Object.entries(filter).flatMap(([name, value]) => (OPTIONS[name] ? [OPTIONS[name], value] : []));
}

/** An option with its value; none for an empty value. @param {string} option @param {string | null | undefined} value */
export function option(option, value) {
  return value === null || value === undefined || value === "" ? [] : [option, value];
}

/** The names of all job filters, in addresses and in the search box. */
export function filterNames() {
  return Object.keys(OPTIONS);
}

/** @type {Record<string, string>} */
const OPTIONS = {
  state: "--state",
  view: "--view",
  queue: "--queue",
  task: "--task",
  limit: "--limit",
  key: "--key",
  unique_key: "--unique-key",
  schedule: "--schedule",
  batch: "--batch",
  node: "--node",
  tag: "--tag",
  header: "--header",
  annotation: "--annotation",
  error: "--error",
  text: "--text",
  enqueued_after: "--since",
  enqueued_before: "--until",
  finished_after: "--finished-since",
  finished_before: "--finished-until",
};
