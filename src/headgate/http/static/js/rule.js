/** Rules as they are typed: what "15/m" means, in words, before it is set. */

import { count, duration } from "./format.js";

/** @typedef {{count: number, seconds: number | null}} Rule */

const UNITS = /** @type {Record<string, number>} */ ({ s: 1, m: 60, h: 3600, d: 86_400 });

/** Periods that have a name. @type {Record<number, string>} */
const PERIODS = { 1: "second", 60: "minute", 3600: "hour", 86_400: "day" };

/** @param {string} text @param {boolean} isAtOnce whether it counts what runs at once @returns {Rule | {error: string}} */
export function parseRule(text, isAtOnce) {
  if (isAtOnce)
    return /^[1-9]\d*$/.test(text)
      ? { count: Number(text), seconds: null }
      : { error: `“${text}” is no number of jobs` };
  const match = /^(\d+)\s*\/\s*(\d*)\s*(s|m|h|d)$/.exec(text);
  if (!match) return { error: `“${text}” is no rate; a rate looks like 15/m, 100/h or 2/10s` };
  if (Number(match[1]) < 1) return { error: "At least one has to start" };
  const seconds = Number(match[2] || 1) * UNITS[match[3]];
  return seconds > 0 ? { count: Number(match[1]), seconds } : { error: "The period has to last" };
}

/** A rule as the store tells it, as short as a list needs it: 15 per minute; as it is told where it has no such words. @param {string} text */
export function brief(text) {
  const rule = parseRule(cliForm(text), /^\d+ at once$/.test(text));
  if ("error" in rule) return text;
  if (rule.seconds === null) return text;
  const unit = PERIODS[rule.seconds] ?? duration(rule.seconds);
  const burst = / burst (\d+)/.exec(text);
  const how = burst ? `, burst ${burst[1]}` : text.endsWith("in fixed windows") ? ", fixed windows" : "";
  return `${count(rule.count)} per ${unit}${how}`;
}

/** A rule as it is typed: without what the store adds to it. @param {string} text */
export function cliForm(text) {
  return text.split(" ")[0];
}

/** How much longer than its period a rule counts a start, in seconds; 0: no longer. @param {string} text */
export function margin(text) {
  return Number(/ \+ ([\d.]+)s/.exec(text)?.[1] ?? 0);
}

/** A rule as the store tells it ("10/m + 0.02s", "100/m burst 20"), in words; null for one that has none. @param {string} text */
export function told(text) {
  const isAtOnce = /^\d+ at once$/.test(text);
  const rule = parseRule(cliForm(text), isAtOnce);
  if ("error" in rule) return null;
  const burst = / burst (\d+)/.exec(text);
  const words = described(rule, burst ? Number(burst[1]) : null);
  const slices = / in (\d+) slices/.exec(text);
  if (text.endsWith("in fixed windows")) return `${words}, counted anew in each window`;
  return slices ? `${words}, counted in ${slices[1]} slices` : words;
}

/** @param {Rule} rule @param {number | null} [burst] */
export function described(rule, burst) {
  const { seconds } = rule;
  if (seconds === null) return `At most ${count(rule.count)} at once`;
  const each = rule.count > 1 ? `, one each ${duration(seconds / rule.count)} on average` : "";
  return `At most ${count(rule.count)} in ${duration(seconds)}${each}${burst ? `, saving up to ${count(burst)}` : ""}`;
}
