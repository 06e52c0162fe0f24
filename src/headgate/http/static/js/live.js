/**
 * What happens, as it happens: one stream for all tabs of a browser, and polling where there is none.
 *
 * A browser opens only six connections to a server, so one tab holds the stream and tells the others. Which one is
 * decided by a lock that is free again as soon as its tab is gone.
 */

import { get } from "./api.js";
import { setNow } from "./format.js";
import { chosen } from "./prefs.js";

const STREAM = new URL("api/stream", document.baseURI);
const POLL_EVERY = 5_000;
const SILENT_AFTER = 12_000;
/** Failures in a row. A stream that ends is nothing yet: the server ends each from time to time. */
const LOST_AFTER = 2;
const POLL_AFTER = 3;

/** @typedef {"connecting" | "connected" | "polling" | "lost" | "paused"} LiveState */
/** @typedef {{state: LiveState, overview: any, heardAt: number}} Live */

/** @type {Live} */
const live = { state: "connecting", overview: null, heardAt: Date.now() };

/** @type {Set<(isNews: boolean) => void>} */
const listeners = new Set();
const channel = new BroadcastChannel(`headgate ${STREAM.pathname}`);

/** @type {EventSource | null} */
let stream = null;
let failures = 0;
let timer = 0;
let retry = 0;

/** What is known now. @returns {Readonly<Live>} */
export function current() {
  return chosen().live ? live : { ...live, state: "paused" };
}

/** Be told of news, and of a changed state of the connection. @param {(isNews: boolean) => void} listener */
export function follow(listener) {
  listeners.add(listener);
  return () => void listeners.delete(listener);
}

/** Begin to listen. A tab that does not hold the stream listens to the one that does. */
export function start() {
  channel.onmessage = ({ data }) => take(data.state, data.overview);
  if (navigator.locks) void navigator.locks.request(`headgate ${STREAM.pathname}`, lead);
  else void lead();
  setInterval(watch, 2_000);
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) watch();
  });
}

/** Hold the stream until this tab is closed. @returns {Promise<never>} */
function lead() {
  connect();
  return new Promise(() => {});
}

function connect() {
  stream = new EventSource(STREAM);
  stream.onopen = () => {
    failures = 0;
    tell("connected", null);
  };
  stream.addEventListener("overview", (event) => tell("connected", JSON.parse(event.data)));
  // It was too slow to be told everything: what it shows may be old.
  stream.addEventListener("resync", () => tell("connected", null));
  stream.onerror = () => {
    failures += 1;
    const isClosed = stream?.readyState === EventSource.CLOSED;
    if (isClosed || failures >= POLL_AFTER) {
      stream?.close();
      stream = null;
      void poll();
      timer = window.setInterval(poll, POLL_EVERY);
      // A stream is better than asking: it is tried again.
      retry = window.setTimeout(reconnect, 6 * POLL_EVERY);
    } else if (failures >= LOST_AFTER) tell("lost", null);
  };
}

function reconnect() {
  clearInterval(timer);
  clearTimeout(retry);
  timer = 0;
  failures = 0;
  connect();
}

async function poll() {
  try {
    const overview = await get("overview");
    const isBack = live.state === "lost";
    tell("polling", overview);
    // Who was away and answers again has a stream again, most likely.
    if (isBack && timer !== 0) reconnect();
  } catch {
    tell("lost", null);
  }
}

/** Tell this tab, and the others. @param {LiveState} state @param {any} overview */
function tell(state, overview) {
  channel.postMessage({ state, overview });
  take(state, overview);
}

/** @param {LiveState} state @param {any} overview */
function take(state, overview) {
  live.state = state;
  if (state !== "lost") live.heardAt = Date.now();
  if (overview) {
    live.overview = overview;
    setNow(overview.now);
  }
  for (const listener of listeners) listener(state !== "lost");
}

/** A tab whose leader says nothing asks by itself whether the server is there. */
function watch() {
  if (stream !== null || timer !== 0 || document.hidden || Date.now() - live.heardAt < SILENT_AFTER) return;
  void get("overview").then(
    (overview) => take("connected", overview),
    () => take("lost", null),
  );
}
