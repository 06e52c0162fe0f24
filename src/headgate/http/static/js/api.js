/** The REST API: what is asked of it, and what its errors say. */

const ROOT = new URL("api/", document.baseURI);
const PATIENCE = 15_000;

/**
 * @typedef {{user: string, role: string, can: string[], token: string, title: string, store: string, version: string,
 *   now: string, read_only: boolean, can_sign_out: boolean, redacted: string[]}} Session
 */

/** What the server, or the way to it, had against a request. */
export class ApiError extends Error {
  /** @param {number} status @param {string} code @param {string} message */
  constructor(status, code, message) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
  }
}

let token = "";

/** Whether one may look for text in payloads: where fields are hidden, that would tell them. @param {Session | null} session */
export function maySearchText(session) {
  return !session?.redacted?.length || session.role === "admin";
}

/** Who is asking, and what they may do. @returns {Promise<Session>} */
export async function session() {
  const found = await get("session");
  token = found.token;
  return found;
}

/**
 * @param {string} path below the root of the API, with escaped parts
 * @param {Record<string, any>} [query] what is null or empty is left out
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
 * Ask for a change. A token that has expired meanwhile is fetched again, once.
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

/** End the session of this browser, and show the sign-in page. */
export async function signOut() {
  await change("POST", "../logout");
  location.assign(new URL("login", document.baseURI));
}

/** The escaped parts of a path. @param {...string} parts */
export function path(...parts) {
  return parts.map(encodeURIComponent).join("/");
}

/** The answer, or null if there is no such thing (yet). @template T @param {Promise<T>} answer @returns {Promise<T | null>} */
export async function optional(answer) {
  try {
    return await answer;
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
  const signals = [AbortSignal.timeout(init.method === "GET" ? PATIENCE : 4 * PATIENCE), ...(signal ? [signal] : [])];
  let answer;
  try {
    answer = await fetch(url, { ...init, signal: AbortSignal.any(signals), credentials: "same-origin" });
  } catch (error) {
    if (signal?.aborted) throw error;
    const isSlow = error instanceof DOMException && error.name === "TimeoutError";
    const what = isSlow ? "The server did not answer in time." : "The server cannot be reached.";
    throw new ApiError(0, isSlow ? "timeout" : "unreachable", what);
  }
  const isJson = (answer.headers.get("Content-Type") ?? "").includes("json");
  const data = isJson ? JSON.parse(await answer.text(), exact) : null;
  if (answer.ok) return data;
  // The session has ended, here or in another tab: the server shows the sign-in page at this address.
  if (answer.status === 401) location.reload();
  const told = data?.error;
  throw new ApiError(answer.status, told?.code ?? "error", told?.message ?? `The server answered ${answer.status}.`);
}

/**
 * An integer that JavaScript would round, as an id of 64 bits, stays as it was written.
 *
 * @param {string} _name
 * @param {any} value
 * @param {{source?: string}} [context] what was written, in browsers that tell it
 */
function exact(_name, value, context) {
  const isRounded = typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value);
  const { rawJSON } = /** @type {any} */ (JSON);
  return isRounded && rawJSON && context?.source ? rawJSON(context.source) : value;
}
