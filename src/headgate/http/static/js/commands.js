/** The `headgate` command that does what a page does. HEADGATE_APP names the app. */

import { quoted } from "./text.js";

/** @param {...(string | null | undefined | false)} words */
export function command(...words) {
  return ["headgate", ...words.filter((word) => typeof word === "string")].map(quoted).join(" ");
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
