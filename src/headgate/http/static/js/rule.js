/** Parse and describe the rules of limits, such as "15/m". */

import { count, duration } from "./format.js";
import { t } from "./language.js";

/** @typedef {{count: number, seconds: number | null}} Rule */

const UNITS = /** @type {Record<string, number>} */ ({ s: 1, m: 60, h: 3600, d: 86_400 });

/** The end of a stored rule that counts the calls of a chunked task. */
const PER_CALL = / per call$/;

/** Periods with a name. @type {Record<number, string>} */
const PERIODS = { 1: t("second"), 60: t("minute"), 3600: t("hour"), 86_400: t("day") };

/** Parse a rule as people type it. @param {string} text @param {boolean} isAtOnce whether it limits concurrent jobs, not a rate @returns {Rule | {error: string}} */
export function parseRule(text, isAtOnce) {
  if (isAtOnce)
    return /^[1-9]\d*$/.test(text)
      ? { count: Number(text), seconds: null }
      : { error: t("“{text}” is not a number of jobs", { text }) };
  const match = /^(\d+)\s*\/\s*(\d*)\s*(s|m|h|d)$/.exec(text);
  if (!match) return { error: t("“{text}” is not a rate; write it like 15/m, 100/h or 2/10s", { text }) };
  if (Number(match[1]) < 1) return { error: t("The count must be at least 1") };
  const seconds = Number(match[2] || 1) * UNITS[match[3]];
  return seconds > 0 ? { count: Number(match[1]), seconds } : { error: t("The period must be longer than 0") };
}

/** A stored rule in short form for lists: "15 per minute"; unchanged if it cannot be parsed. @param {string} text */
export function shortRule(text) {
  if (PER_CALL.test(text)) return t("{rule}, per call", { rule: shortRule(text.replace(PER_CALL, "")) });
  const rule = parseRule(cliForm(text), /^\d+ at once$/.test(text));
  if ("error" in rule) return text;
  if (rule.seconds === null) return t("{count} at once", { count: count(rule.count) });
  const unit = periodName(rule.seconds);
  const burst = / burst (\d+)/.exec(text);
  const rate = t("{count} per {unit}", { count: count(rule.count), unit });
  if (burst) return t("{rate}, burst {burst}", { rate, burst: burst[1] });
  return text.endsWith("in fixed windows") ? t("{rate}, fixed windows", { rate }) : rate;
}

/** "minute", or "2 h" for a period without a name. @param {number} seconds */
export function periodName(seconds) {
  return PERIODS[seconds] ?? duration(seconds);
}

/** A stored rule as people type it, without what the store adds. @param {string} text */
export function cliForm(text) {
  return text.split(" ")[0];
}

/** The seconds that a stored rule adds to its period for clock differences; 0 if none. @param {string} text */
export function marginOf(text) {
  return Number(/ \+ ([\d.]+)s/.exec(text)?.[1] ?? 0);
}

/** A stored rule ("10/m + 0.02s", "100/m burst 20") in words; null if it cannot be parsed. @param {string} text */
export function describeStored(text) {
  if (PER_CALL.test(text)) {
    const rule = describeStored(text.replace(PER_CALL, ""));
    return rule && t("{rule}, per call", { rule });
  }
  const isAtOnce = /^\d+ at once$/.test(text);
  const rule = parseRule(cliForm(text), isAtOnce);
  if ("error" in rule) return null;
  const burst = / burst (\d+)/.exec(text);
  const description = describe(rule, burst ? Number(burst[1]) : null);
  const slices = / in (\d+) slices/.exec(text);
  if (text.endsWith("in fixed windows")) return t("{description}, counted in fixed windows", { description });
  return slices ? t("{description}, counted in {slices} slices", { description, slices: slices[1] }) : description;
}

/** A parsed rule in words. @param {Rule} rule @param {number | null} [burst] */
export function describe(rule, burst) {
  const { seconds } = rule;
  if (seconds === null) return t("At most {count} at once", { count: count(rule.count) });
  const parts = [t("At most {count} in {duration}", { count: count(rule.count), duration: duration(seconds) })];
  if (rule.count > 1) parts.push(t("one every {duration} on average", { duration: duration(seconds / rule.count) }));
  if (burst) parts.push(t("with a burst of up to {burst}", { burst: count(burst) }));
  return parts.join(", ");
}
