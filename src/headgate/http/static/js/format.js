/** Numbers, times and durations as text. Times are in the preferred time zone. */

import { LANGUAGE } from "./catalogue.js";
import { pluralForm, t } from "./language.js";
import { preferences } from "./prefs.js";

const NUMBER = new Intl.NumberFormat(LANGUAGE, { maximumFractionDigits: 0 });
const COMPACT = new Intl.NumberFormat(LANGUAGE, { notation: "compact", maximumFractionDigits: 1 });

/** Milliseconds by which the store's clock is ahead of this browser's. */
let ahead = 0;
let isSet = false;
/** Milliseconds. A smaller step back is network delay; a larger one means that a clock was set. */
const MAX_DELAY = 5_000;

/** Set the time from the store, so that countdowns are right in a browser with a wrong clock. @param {string} now */
export function setNow(now) {
  const offset = Date.parse(now) - Date.now();
  // A slow response makes the store's clock appear behind, so the fastest response gives the best estimate.
  if (!isSet || offset > ahead || ahead - offset > MAX_DELAY) ahead = offset;
  isSet = true;
}

/** Return the store's time, in milliseconds. */
export function now() {
  return Date.now() + ahead;
}

/** @param {number | null | undefined} value */
export function count(value) {
  return value === null || value === undefined ? "–" : NUMBER.format(value);
}

/** 12,345 as 12.3K, for narrow places. @param {number} value */
export function compact(value) {
  return value < 10_000 ? NUMBER.format(value) : COMPACT.format(value);
}

/** "12,345", or "10,000+" if there may be more. @param {number | null | undefined} value @param {boolean} isExact */
export function bounded(value, isExact) {
  return `${count(value)}${isExact ? "" : "+"}`;
}

/** "attempt 2". After a retry by an operator a job counts from 1 again: "attempt 1 after retry". @param {number} number @param {number} restart */
export function attempt(number, restart) {
  if (!restart) return t("attempt {number}", { number });
  return restart > 1
    ? t("attempt {number} after retry {retry}", { number, retry: restart })
    : t("attempt {number} after retry", { number });
}

/** "1 job", "2 jobs". @param {number} value @param {string} one @param {string} [several] */
export function plural(value, one, several = `${one}s`) {
  const text = pluralForm(`{n} ${several}`, value) ?? `{n} ${value === 1 ? one : several}`;
  return text.replace("{n}", NUMBER.format(value));
}

/** A rate, with up to two decimals below 10. @param {number | null | undefined} value */
export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value === 0 ? "0" : value < 10 ? rounded(value, 2) : NUMBER.format(value);
}

/** How many per second, or per minute if they are few. @param {number} perSecond */
export function perTime(perSecond) {
  return perSecond < 1
    ? t("{rate} per minute", { rate: rate(60 * perSecond) })
    : t("{rate} per second", { rate: rate(perSecond) });
}

/** A part of 1 with a decimal while it is small: 0.3 %. @param {number} part */
export function share(part) {
  if (!part) return "0 %";
  const percent = 100 * part;
  return percent < 10 ? `${rate(Math.max(0.1, Number(percent.toFixed(1))))} %` : `${Math.round(percent)} %`;
}

/**
 * Seconds in the two largest units: 3 ms, 1.2 s, 4 min 10 s, 2 h 5 min, 3 d 4 h.
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
  if (seconds < 60) return `${seconds < 10 ? rounded(seconds, 1) : Math.floor(seconds)} s`;
  return coarse(seconds);
}

/** A duration in whole units, for times that tick. @param {number} seconds */
export function coarse(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  const [large, small, a, b] =
    whole < 3600 ? [60, 1, "min", "s"] : whole < 86_400 ? [3600, 60, "h", "min"] : [86_400, 3600, "d", "h"];
  const rest = Math.floor((whole % Number(large)) / Number(small));
  return `${Math.floor(whole / Number(large))} ${a}${rest ? ` ${rest} ${b}` : ""}`;
}

/** The date and time with the time zone. @param {string | number} instant */
export function instant(instant) {
  const at = parts(instant);
  return `${at.date} ${at.time} ${at.zone}`;
}

/** An instant in a text of the server, which is in UTC. */
const INSTANT = /\b(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?: UTC|\+00:00|Z)(?!\w)/g;

/** A text of the server, with its instants in the preferred time zone. @param {string} text */
export function zoned(text) {
  return text.replace(INSTANT, (_, date, time) => instant(`${date}T${time}Z`));
}

/** The message of a job's error. One that Headgate wrote has instants; what a program wrote stays as it is. @param {{type: string, message: string}} error */
export function errorMessage({ type, message }) {
  return type.startsWith("headgate.") ? zoned(message) : message;
}

const DATE = /** @type {const} */ ({ year: "numeric", month: "2-digit", day: "2-digit" });
const TIME = /** @type {const} */ ({ hour: "2-digit", minute: "2-digit" });

/**
 * The time on the wall clock of a time zone, with the date if it `isFull`; null if the zone is shown already, or is not
 * known to this browser.
 *
 * @param {string | null} instant @param {string | null} tz @param {boolean} [isFull]
 */
export function inZone(instant, tz, isFull = false) {
  if (!instant || !tz || (tz === "UTC" && preferences().zone === "utc")) return null;
  try {
    const options = { timeZone: tz, ...(isFull ? DATE : {}), ...TIME };
    return `${new Intl.DateTimeFormat("sv-SE", options).format(new Date(instant))} ${tz}`;
  } catch {
    return null;
  }
}

/** The seconds from one instant to another; null without one of them. @param {string | null | undefined} from @param {string | null | undefined} to */
export function secondsBetween(from, to) {
  return from && to ? (Date.parse(to) - Date.parse(from)) / 1000 : null;
}

/** The time of day, with the date unless it is today. @param {string | number} instant */
export function clock(instant) {
  const at = parts(instant);
  return at.date === parts(now()).date ? at.time : `${at.date} ${at.time}`;
}

/** Hours and minutes, for a chart axis. @param {number} instant @param {boolean} [withSeconds] */
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
  if (Math.abs(seconds) < 1) return t("now");
  return seconds > 0 ? t("{time} ago", { time: coarse(seconds) }) : t("in {time}", { time: coarse(-seconds) });
}

/** The end of an id: its beginning is a timestamp that jobs of one batch share. @param {string} id */
export function shortId(id) {
  return id.length > 14 ? `…${id.slice(-10)}` : id;
}

/** A key as text; a limit without keys has the empty key. @param {string} key */
export function keyName(key) {
  return key === "" ? t("(no key)") : key;
}

/** @param {string | number} instant */
function parts(instant) {
  const at = new Date(instant);
  const isUtc = preferences().zone === "utc";
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
function rounded(value, places) {
  return value.toLocaleString(LANGUAGE, { maximumFractionDigits: places });
}
