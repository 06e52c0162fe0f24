/** The objects whose pages this tab has shown last. They are forgotten with the tab. */

/** @typedef {{kind: string, name: string, limit: string | null}} Recent */

const STORAGE_KEY = "headgate.recent";
const MOST = 6;

/** Note that the page of an object is shown; lists and other pages are of no object. @param {import("./router.js").Route} route */
export function noteVisit({ page, params }) {
  const name = { job: params.id, batch: params.id, limit: params.limit, key: params.key }[page] ?? params.name;
  if (!["job", "batch", "queue", "task", "schedule", "limit", "key"].includes(page) || name === undefined) return;
  const visited = { kind: page, name, limit: page === "key" ? params.limit : null };
  const others = recentObjects().filter((each) => !isSame(each, visited));
  try {
    sessionStorage.setItem(STORAGE_KEY, JSON.stringify([visited, ...others].slice(0, MOST)));
  } catch {
    // Without storage nothing is recent.
  }
}

/** The last objects, newest first. @returns {Recent[]} */
export function recentObjects() {
  try {
    return JSON.parse(sessionStorage.getItem(STORAGE_KEY) ?? "[]");
  } catch {
    return [];
  }
}

/** Put the recent ones first; the others keep their order. @template {Recent} T @param {T[]} found @returns {T[]} */
export function recentFirst(found) {
  const recent = recentObjects();
  const rank = (/** @type {T} */ each) => {
    const at = recent.findIndex((other) => isSame(each, other));
    return at < 0 ? recent.length : at;
  };
  return [...found].sort((a, b) => rank(a) - rank(b));
}

/** @param {Recent} a @param {Recent} b */
function isSame(a, b) {
  return a.kind === b.kind && a.name === b.name && (a.limit ?? null) === (b.limit ?? null);
}
