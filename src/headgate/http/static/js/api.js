/** Requests to the REST API, and their errors. */
import { t } from "./language.js";

const ROOT = new URL("api/v1/", document.baseURI);
/** Milliseconds for a read; a change may take four times as long. */
const TIMEOUT = 15_000;

/**
 * @typedef {{user: string, role: string, can: string[], token: string, title: string, store: string, app: string | null,
 *   version: string, now: string, read_only: boolean, can_sign_out: boolean, redacted: string[]}} Session
 */

/** A request that failed. Status 0: no response arrived. */
export class ApiError extends Error {
  /** @param {number} status @param {string} code @param {string} message @param {{detail: string, pointer?: string}[]} [errors] */
  constructor(status, code, message, errors = []) {
    super(message);
    this.errors = errors;
    this.name = "ApiError";
    this.status = status;
    this.code = code;
  }
}

/** What an error says. @param {unknown} error */
export function messageOf(error) {
  return error instanceof Error ? error.message : String(error);
}

let token = "";

/** Whether this user may search payloads by text: a search would reveal redacted fields. @param {Session | null} session */
export function canSearchText(session) {
  return !session?.redacted?.length || session.role === "admin";
}

/** Return the current user and their permissions. @returns {Promise<Session>} */
export async function session() {
  const current = await get("session");
  token = current.token;
  return current;
}

/**
 * Read from the API.
 *
 * @param {string} path below the root of the API, with escaped parts
 * @param {Record<string, any>} [query] null and empty values are left out
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export function get(path, query = {}, signal) {
  const url = new URL(path, ROOT);
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, String(value));
  }
  return request(url, { method: "GET" }, signal);
}

/**
 * Send a change. An expired token is fetched again, once.
 *
 * @param {"POST" | "DELETE"} method
 * @param {string} path
 * @param {object} [body]
 * @returns {Promise<any>}
 */
export async function change(method, path, body) {
  const url = new URL(path, ROOT);
  try {
    return await send(url, method, body);
  } catch (error) {
    if (!(error instanceof ApiError) || !/token/.test(error.code)) throw error;
    await session();
    return send(url, method, body);
  }
}

/** End the session of this browser, or all sessions of the user, and show the sign-in page. */
export async function signOut(isEverywhere = false) {
  await change("POST", isEverywhere ? "../../logout/everywhere" : "../../logout");
  location.assign(new URL("login", document.baseURI));
}

/** Return the value of a JSON text, with the digits of large integers. Throws SyntaxError. @param {string} text @returns {any} */
export function parseJson(text) {
  return JSON.parse(text, keepLargeIntegers);
}

/** Join the parts of a path and escape them. @param {...string} parts */
export function path(...parts) {
  return parts.map(encodeURIComponent).join("/");
}

/** Return the response, or null if the API does not have it. @template T @param {Promise<T>} response @returns {Promise<T | null>} */
export async function optional(response) {
  try {
    return await response;
  } catch (error) {
    if (error instanceof ApiError && [400, 404, 405, 422, 501].includes(error.status)) return null;
    throw error;
  }
}

/** @param {URL} url @param {string} method @param {object | undefined} body */
function send(url, method, body) {
  const headers = { "X-Headgate-Token": token, ...(body ? { "Content-Type": "application/json" } : {}) };
  return request(url, { method, headers, body: body ? JSON.stringify(body) : undefined });
}

/** @param {URL} url @param {RequestInit} init @param {AbortSignal} [signal] */
async function request(url, init, signal) {
  const signals = [AbortSignal.timeout(init.method === "GET" ? TIMEOUT : 4 * TIMEOUT), ...(signal ? [signal] : [])];
  let response, data;
  try {
    response = await fetch(url, { ...init, signal: AbortSignal.any(signals), credentials: "same-origin" });
    const isJson = (response.headers.get("Content-Type") ?? "").includes("json");
    data = isJson ? parseJson(await response.text()) : null;
  } catch (error) {
    if (signal?.aborted) throw error;
    const isTimeout = error instanceof DOMException && error.name === "TimeoutError";
    const message = isTimeout ? t("The server did not respond in time.") : t("The server cannot be reached.");
    throw new ApiError(0, isTimeout ? "timeout" : "unreachable", message);
  }
  // Another status without JSON is not of the API, as when a proxy answers with its own sign-in page.
  if (response.ok && (data !== null || response.status === 204)) return data;
  if (response.status === 401) {
    // The session has ended. A reload leads to the sign-in page, which waits for an open form: its text would be lost.
    if (!document.querySelector("dialog[open] :is(input, textarea)")) location.reload();
    throw new ApiError(401, "unauthorized", t("You are signed out. Sign in again in another tab, then continue here."));
  }
  // An error is a problem of RFC 9457; the code is the last part of its type.
  const message =
    data?.detail ?? data?.title ?? t("The server responded with status {status}.", { status: response.status });
  throw new ApiError(response.status, data?.type?.split("#").pop() ?? "error", message, data?.errors);
}

/**
 * Keep the digits of an integer that JavaScript would round, such as a 64-bit id.
 *
 * @param {string} _name
 * @param {any} value
 * @param {{source?: string}} [context] the JSON text of the value, in browsers that pass it
 */
function keepLargeIntegers(_name, value, context) {
  const isRounded = typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value);
  const { rawJSON } = /** @type {any} */ (JSON);
  return isRounded && rawJSON && context?.source ? rawJSON(context.source) : value;
}
