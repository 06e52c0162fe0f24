/** Rules as they are typed: what "15/m" means, in words, before it is set. */

import { count, duration } from "./format.js";

/** @typedef {{count: number, seconds: number | null}} Rule */

const UNITS = /** @type {Record<string, number>} */ ({ s: 1, m: 60, h: 3600, d: 86_400 });

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

/** A rule as the store tells it ("10/m + 0.02s", "100/m burst 20"), in words; null for one that has none. @param {string} text */
export function told(text) {
  const isAtOnce = /^\d+ at once$/.test(text);
  const rule = parseRule(text.split(" ")[0], isAtOnce);
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
