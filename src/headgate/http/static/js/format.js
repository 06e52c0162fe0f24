/** Numbers, instants and durations as people read them. Instants are told in the zone that was chosen. */

import { chosen } from "./prefs.js";

const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** How far the clock of the store is ahead of this browser's, in milliseconds. */
let ahead = 0;
let isTold = false;
/** Less than this, and it is a delay; more, and somebody has set a clock. */
const DELAY = 5_000;

/** Take the time from the store, so that a browser with a wrong clock counts down rightly. @param {string} now */
export function setNow(now) {
  const offset = Date.parse(now) - Date.now();
  // What comes late makes the store look behind, so the answer that came fastest is the one to believe.
  if (!isTold || offset > ahead || ahead - offset > DELAY) ahead = offset;
  isTold = true;
}

/** Milliseconds, in the time of the store. */
export function now() {
  return Date.now() + ahead;
}

/** @param {number | null | undefined} value */
export function count(value) {
  return value === null || value === undefined ? "–" : NUMBER.format(value);
}

/** 12,345 as 12.3K, where there is little room. @param {number} value */
export function compact(value) {
  return value < 10_000 ? NUMBER.format(value) : COMPACT.format(value);
}

/** A rate with as many places as it needs. @param {number | null | undefined} value */
export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value === 0 ? "0" : value < 10 ? trimmed(value, 2) : NUMBER.format(value);
}

/** @param {number} value @param {string} one @param {string} [many] */
export function plural(value, one, many = `${one}s`) {
  return `${NUMBER.format(value)} ${value === 1 ? one : many}`;
}

/**
 * Seconds in words, the two largest units of them: 3 ms, 1.2 s, 4 min 10 s, 2 h 5 min, 3 d 4 h.
 *
 * @param {number | null | undefined} seconds
 * @returns {string}
 */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds === 0) return "0 s";
  if (seconds < 0.001) return "< 1 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds < 10 ? trimmed(seconds, 1) : Math.floor(seconds)} s`;
  return coarse(seconds);
}

/** The same in whole units, for what ticks. @param {number} seconds */
export function coarse(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  const [large, small, a, b] =
    whole < 3600 ? [60, 1, "min", "s"] : whole < 86_400 ? [3600, 60, "h", "min"] : [86_400, 3600, "d", "h"];
  const rest = Math.floor((whole % Number(large)) / Number(small));
  return `${Math.floor(whole / Number(large))} ${a}${rest ? ` ${rest} ${b}` : ""}`;
}

/** An instant in full, with its zone. @param {string | number} instant */
export function instant(instant) {
  const at = parts(instant);
  return `${at.date} ${at.time} ${at.zone}`;
}

/** The time of day, with the date unless it is today's. @param {string | number} instant */
export function clock(instant) {
  const at = parts(instant);
  return at.date === parts(now()).date ? at.time : `${at.date} ${at.time}`;
}

/** Hours and minutes, for the axis of a chart. @param {number} instant @param {boolean} [withSeconds] */
export function hour(instant, withSeconds = false) {
  return parts(instant).time.slice(0, withSeconds ? 8 : 5);
}

/** The time with milliseconds, for logs. @param {string | number} instant */
export function precise(instant) {
  const ms = new Date(instant).getUTCMilliseconds();
  return `${parts(instant).time}.${String(ms).padStart(3, "0")}`;
}

/** "12 s ago", "in 4 min". @param {string | number} instant */
export function relative(instant) {
  const seconds = (now() - new Date(instant).getTime()) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `${coarse(seconds)} ago` : `in ${coarse(-seconds)}`;
}

/** An id with its telling end: ids begin with their time, which those of one batch share. @param {string} id */
export function shortId(id) {
  return id.length > 14 ? `…${id.slice(-10)}` : id;
}

/** A key as it is shown: that of a limit without keys is empty. @param {string} key */
export function keyName(key) {
  return key === "" ? "(no key)" : key;
}

/** @param {number} part @param {number} whole */
export function percent(part, whole) {
  return whole ? `${Math.round((100 * part) / whole)} %` : "0 %";
}

/** @param {string | number} instant */
function parts(instant) {
  const at = new Date(instant);
  const isUtc = chosen().zone === "utc";
  const shifted = isUtc ? at : new Date(at.getTime() - at.getTimezoneOffset() * 60_000);
  const text = Number.isNaN(shifted.getTime()) ? "????-??-??T??:??:??" : shifted.toISOString();
  return { date: text.slice(0, 10), time: text.slice(11, 19), zone: isUtc ? "UTC" : offset(at) };
}

/** @param {Date} at */
function offset(at) {
  const minutes = -at.getTimezoneOffset();
  const size = Math.abs(minutes);
  const two = (/** @type {number} */ value) => String(value).padStart(2, "0");
  return `${minutes < 0 ? "−" : "+"}${two(Math.floor(size / 60))}:${two(size % 60)}`;
}

/** @param {number} value @param {number} places */
function trimmed(value, places) {
  return String(Number(value.toFixed(places)));
}
