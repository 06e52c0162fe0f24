/**
 * Live updates: one stream for all tabs of a browser, and polling where no stream can be opened.
 *
 * A browser opens only six connections to a server, so one tab holds the stream and forwards its events. A lock, which
 * is released when its tab closes, decides which tab that is.
 */

import { get } from "./api.js";
import { setNow } from "./format.js";
import { preferences } from "./prefs.js";

const STREAM = new URL("api/v1/stream", document.baseURI);
const POLL_EVERY = 5_000;
const CHECK_EVERY = 2_000;
const SILENT_AFTER = 12_000;
/** Failures in a row. One is normal: the server ends each stream from time to time. */
const LOST_AFTER = 2;
const POLL_AFTER = 3;

/** @typedef {"connecting" | "connected" | "polling" | "lost" | "paused"} LiveState */
/** @typedef {{state: LiveState, overview: any, answeredAt: number}} Live `answeredAt` is by the clock of the browser */

/** @type {Live} */
const live = { state: "connecting", overview: null, answeredAt: Date.now() };

/** @type {Set<(hasUpdate: boolean, readAt?: string) => void>} */
const listeners = new Set();
const channel = new BroadcastChannel(`headgate ${STREAM.pathname}`);

/** @type {EventSource | null} */
let stream = null;
let failures = 0;
let pollTimer = 0;
let reconnectTimer = 0;
let isChecking = false;

/** Return the state of the connection and the latest overview. @returns {Readonly<Live>} */
export function current() {
  return preferences().live ? live : { ...live, state: "paused" };
}

/**
 * Call `listener` for each update and each change of the connection; `readAt` is when the overview of an update was read.
 * Returns the function that unsubscribes.
 *
 * @param {(hasUpdate: boolean, readAt?: string) => void} listener
 */
export function subscribe(listener) {
  listeners.add(listener);
  return () => void listeners.delete(listener);
}

/** Start live updates. A tab without the stream receives its events from the tab that holds it. */
export function start() {
  channel.onmessage = ({ data }) => {
    if (!data.isQuestion) apply(data.state, data.overview, data.hasUpdate, data.isOld);
    // A new tab asks for the overview, which would otherwise reach it with the next change.
    else if (stream !== null && live.overview)
      channel.postMessage({ state: live.state, overview: live.overview, hasUpdate: false, isOld: true });
  };
  channel.postMessage({ isQuestion: true });
  if (navigator.locks) void navigator.locks.request(`headgate ${STREAM.pathname}`, holdStream);
  else void holdStream();
  setInterval(checkWhenSilent, CHECK_EVERY);
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) checkWhenSilent();
  });
}

/**
 * Wait for the first overview, at most so many milliseconds. A page that loads afterwards need not load again for it.
 *
 * @param {number} patience
 * @returns {Promise<void>}
 */
export function firstOverview(patience) {
  return new Promise((resolve) => {
    const unsubscribe = subscribe(() => live.overview && end());
    const timer = setTimeout(end, patience);
    function end() {
      unsubscribe();
      clearTimeout(timer);
      resolve();
    }
  });
}

/** Hold the stream until this tab closes. @returns {Promise<never>} */
function holdStream() {
  connect();
  return new Promise(() => {});
}

function connect() {
  stream = new EventSource(STREAM);
  stream.onopen = () => {
    failures = 0;
    // An overview follows if anything has changed since the last one.
    publish("connected", null, live.state === "lost");
  };
  stream.addEventListener("overview", (event) => publish("connected", JSON.parse(event.data)));
  // This browser read too slowly and missed events: pages load their data again.
  stream.addEventListener("resync", () => publish("connected", null));
  stream.addEventListener("lost", () => publish("lost", null));
  stream.onerror = () => {
    failures += 1;
    const isClosed = stream?.readyState === EventSource.CLOSED;
    if (isClosed || failures >= POLL_AFTER) {
      stream?.close();
      stream = null;
      void poll();
      pollTimer = window.setInterval(poll, POLL_EVERY);
      reconnectTimer = window.setTimeout(reconnect, 6 * POLL_EVERY);
    } else if (failures >= LOST_AFTER) publish("lost", null);
  };
}

function reconnect() {
  clearInterval(pollTimer);
  clearTimeout(reconnectTimer);
  pollTimer = 0;
  failures = 0;
  connect();
}

/** The overview; throws if it is only the last known one. */
async function currentOverview() {
  const overview = await get("overview");
  if (overview.silent_since) throw new Error("silent_since");
  return overview;
}

async function poll() {
  try {
    const overview = await currentOverview();
    // Meanwhile a stream was opened again, whose events are newer.
    if (pollTimer === 0) return;
    const isBack = live.state === "lost";
    publish("polling", overview);
    // A server that responds again probably has streams again.
    if (isBack) reconnect();
  } catch {
    if (pollTimer !== 0) publish("lost", null);
  }
}

/** Apply to this tab, and send to the others. @param {LiveState} state @param {any} overview @param {boolean} [hasUpdate] */
function publish(state, overview, hasUpdate) {
  channel.postMessage({ state, overview, hasUpdate });
  apply(state, overview, hasUpdate);
}

/**
 * @param {LiveState} state @param {any} overview @param {boolean} [hasUpdate] whether pages load their data again
 * @param {boolean} [isOld] whether a tab had it before: it says neither what time it is nor that the server answers
 */
function apply(state, overview, hasUpdate = state !== "lost", isOld = false) {
  live.state = state;
  if (state !== "lost" && !isOld) live.answeredAt = Date.now();
  if (overview) {
    live.overview = overview;
    if (!isOld) setNow(overview.now);
  }
  for (const listener of listeners) listener(hasUpdate, overview?.now);
}

/**
 * Request the overview when nothing has arrived for a while. An open stream may be silent because nothing changes, and
 * then pages need not refresh, or because the server or its store hangs.
 */
async function checkWhenSilent() {
  if (isChecking || pollTimer !== 0 || document.hidden || Date.now() - live.answeredAt < SILENT_AFTER) return;
  isChecking = true;
  const { answeredAt } = live;
  try {
    const overview = await currentOverview();
    // What has arrived meanwhile may be newer.
    if (live.answeredAt !== answeredAt) return;
    if (stream === null) apply("connected", overview);
    else publish("connected", overview, live.state !== "connected");
  } catch {
    if (live.answeredAt !== answeredAt) return;
    if (stream === null) apply("lost", null);
    else publish("lost", null);
  } finally {
    isChecking = false;
  }
}
