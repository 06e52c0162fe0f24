/**
 * Texts in the language of the page. English texts in the code are the keys of the catalogues in `languages/`, so they
 * are written as literals: `t("Pause {name}?", { name })` here, `plural(count, "job")` in `format.js`. A test finds them.
 */

import { CATALOGUE, LANGUAGE } from "./catalogue.js";

const FORMS = new Intl.PluralRules(LANGUAGE);
/** In seconds. */
const YEAR = 31_536_000;
const VALUE = /\{(\w+)\}/;

/** A text, with the values of its `{names}`. @param {string} text @param {Record<string, string | number>} [values] */
export function t(text, values = {}) {
  return filled(String(CATALOGUE[text] ?? text), values);
}

/** A text whose values are elements, such as links. @param {string} text @param {Record<string, import("./dom.js").Children>} values @returns {import("./dom.js").Child[]} */
export function withElements(text, values) {
  const parts = String(CATALOGUE[text] ?? text).split(VALUE);
  return parts.map((part, at) => (at % 2 ? values[part] : part)).flat();
}

/** The translation of a text with the count `{n}`; null without one, as in English. @param {string} text @param {number} count */
export function pluralForm(text, count) {
  const forms = CATALOGUE[text];
  return typeof forms === "object" ? (forms[FORMS.select(count)] ?? forms.other) : null;
}

/** A word or reason that the API gives, such as a state: translated if it is one of WORDS, otherwise as it is. @param {string} code */
export function word(code) {
  return WORDS.includes(code) ? t(code) : code;
}

/** The heading of a declared column. @param {string} text */
export function columnLabel(text) {
  return t(text);
}

/** The words of the API that are shown: states, kinds, events, actions and reasons. */
const WORDS = [
  // Jobs and batches.
  "waiting",
  "ready",
  "throttled",
  "scheduled",
  "blocked",
  "undeclared",
  "running",
  "succeeded",
  "failed",
  "cancelled",
  "skipped",
  "pending",
  // Nodes, limits and schedules.
  "alive",
  "silent",
  "gone",
  "quiet",
  "active",
  "paused",
  "ended",
  "overdue",
  // What the search box finds, and the audit log is about.
  "job",
  "batch",
  "task",
  "queue",
  "limit",
  "key",
  "schedule",
  "user",
  "node",
  "page",
  "action",
  "filter",
  "jobs",
  // Events of a job.
  "enqueued",
  "started",
  "retried",
  "snoozed",
  "refused",
  "interrupted",
  "lost",
  "is running",
  "is running, and its cancellation was requested",
  "job succeeded",
  "job failed",
  "job cancelled",
  "job skipped",
  // Actions of users.
  "retry",
  "cancel",
  "run now",
  "run again",
  "sign in",
  "sign out",
  "sign out everywhere",
  "pause",
  "resume",
  "unset",
  "reset",
  "penalize",
  "assign",
  "remove",
  "trigger",
  "skip",
  "stop",
  "set slots",
  "create",
  "edit",
  "reencode",
  "enqueue",
  "reschedule",
  "delete",
  "purge",
  "rename",
  // Why jobs of many are not changed.
  "already succeeded",
  "already failed",
  "already cancelled",
  "already skipped",
  "its cancellation was already requested",
  "neither failed nor cancelled: waiting",
  "neither failed nor cancelled: running",
  "neither failed nor cancelled: succeeded",
  "neither failed nor cancelled: skipped",
  "it is running",
  "it is succeeded",
  "it is failed",
  "it is cancelled",
  "it is skipped",
  "it is not waiting for its time",
  "it is waiting for another job",
  "another job is waiting under its unique key",
  "its leader has to be retried first, which also brings the job back",
  "another open transaction has locked it",
  "an unfinished job follows it",
  "changed meanwhile",
  // How failures recur.
  "new",
  "back again",
  "steady",
  // Ends that jobs wait for, settings and skipped runs of schedules, levels of log lines and of the audit, roles.
  "failure",
  "final",
  "run once",
  "run all",
  "allow",
  "misfire",
  "overlap",
  "max runs",
  "debug",
  "info",
  "warning",
  "error",
  "critical",
  "full",
  "minimal",
  "errors",
  "none",
  "viewer",
  "operator",
  "admin",
];

/** Show the dashboard in another language. The server reads the cookie, also for the sign-in page. @param {string} language */
export function setLanguage(language) {
  const path = new URL(document.baseURI).pathname;
  document.cookie = `headgate_language=${language}; path=${path}; max-age=${YEAR}; samesite=lax`;
  location.reload();
}

/** A language in its own words: "Deutsch". @param {string} language */
export function languageName(language) {
  const name = new Intl.DisplayNames([language], { type: "language" }).of(language) ?? language;
  return name.charAt(0).toLocaleUpperCase(language) + name.slice(1);
}

/** @param {string} text @param {Record<string, string | number>} values */
function filled(text, values) {
  return text.replace(/\{(\w+)\}/g, (found, name) => String(values[name] ?? found));
}
