/** The same as a command: what a page does, for a terminal. The app is named by HEADGATE_APP. */

import { quoted } from "./text.js";

/** @param {...(string | null | undefined | false)} words */
export function command(...words) {
  return ["headgate", ...words.filter((word) => typeof word === "string")].map(quoted).join(" ");
}

/** The options of a filter of jobs. @param {Record<string, string>} filter */
export function filterOptions(filter) {
  return Object.entries(filter).flatMap(([name, value]) => (OPTIONS[name] ? [OPTIONS[name], value] : []));
}

/** An option with its value, or nothing. @param {string} option @param {string | null | undefined} value */
export function option(option, value) {
  return value === null || value === undefined || value === "" ? [] : [option, value];
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
  error: "--error",
  text: "--text",
  enqueued_after: "--since",
  enqueued_before: "--until",
  finished_after: "--finished-since",
  finished_before: "--finished-until",
};
