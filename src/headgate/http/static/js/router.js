/** Map addresses to pages, and go to another page without reloading the document. */

/** @typedef {{page: string, params: Record<string, string>, query: URLSearchParams}} Route */

const BASE = new URL(document.baseURI);

/** @type {[RegExp, string, string[]][]} */
const ROUTES = [
  [/^(?:overview)?$/, "overview", []],
  [/^queues$/, "queues", []],
  [/^queues\/(.+)$/, "queue", ["name"]],
  [/^tasks$/, "tasks", []],
  [/^tasks\/(.+)$/, "task", ["name"]],
  [/^jobs$/, "jobs", []],
  [/^jobs\/([^/]+)$/, "job", ["id"]],
  [/^limits$/, "limits", []],
  [/^limits\/(.+)$/, "limit", ["limit"]],
  [/^schedules$/, "schedules", []],
  [/^schedules\/(.+)$/, "schedule", ["name"]],
  [/^nodes$/, "nodes", []],
  [/^audit$/, "audit", []],
  [/^batches$/, "batches", []],
  [/^batches\/([^/]+)$/, "batch", ["id"]],
  [/^failures$/, "failures", []],
  [/^failures\/([^/]+)$/, "failure", ["id"]],
];

/** Return an address inside the dashboard, relative to its base.
 *
 * @param {string[]} path its parts, not yet escaped
 * @param {Record<string, string | number | null | undefined>} [query] null and empty values are left out
 */
export function address(path, query = {}) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") params.set(name, String(value));
  }
  const text = params.toString();
  return path.map(encodeURIComponent).join("/") + (text ? `?${text}` : "");
}

/** Return the route of the current address. @returns {Route} */
export function currentRoute() {
  const path = location.pathname.slice(BASE.pathname.length).replace(/\/$/, "");
  for (const [pattern, page, names] of ROUTES) {
    const match = pattern.exec(path);
    if (match) {
      const params = Object.fromEntries(names.map((name, at) => [name, decoded(match[at + 1])]));
      const query = new URLSearchParams(location.search);
      const key = query.get("key");
      // A key may be empty and may contain anything, so it is in the query, not in the path.
      if (page === "limit" && key !== null) return { page: "key", params: { ...params, key }, query };
      return { page, params, query };
    }
  }
  return { page: "missing", params: { path }, query: new URLSearchParams() };
}

/** Milliseconds after the last scrolling until the position is noted. */
const SCROLL_SETTLES = 250;

/** @type {(route: Route, isNew: boolean, scrollY: number | null) => void} */
let changed = () => {};
let scrollTimer = 0;
/** Whether the page of an earlier visit is loading: its position must not be replaced by that of the empty page. */
let isReturning = false;

/**
 * Call `onChange` for the current address, and on each change of it. For a page that was visited before, it gets the
 * scroll position, to pass to `restoreScroll` once the page is loaded.
 *
 * @param {typeof changed} onChange
 */
export function start(onChange) {
  changed = onChange;
  history.scrollRestoration = "manual";
  addEventListener("scroll", () => {
    clearTimeout(scrollTimer);
    if (!isReturning) scrollTimer = window.setTimeout(noteScroll, SCROLL_SETTLES);
  });
  addEventListener("popstate", (event) => {
    clearTimeout(scrollTimer);
    isReturning = true;
    changed(currentRoute(), false, event.state?.scrollY ?? 0);
  });
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a[href]") : null;
    const isPlain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
    if (!(link instanceof HTMLAnchorElement) || !isPlain || event.defaultPrevented) return;
    if (link.target || link.hasAttribute("download") || !isInside(link)) return;
    event.preventDefault();
    go(link.href);
  });
  isReturning = history.state?.scrollY > 0;
  changed(currentRoute(), true, history.state?.scrollY ?? null);
}

/** Scroll to where an earlier visit of the page ended. @param {number} scrollY */
export function restoreScroll(scrollY) {
  scrollTo(0, scrollY);
  isReturning = false;
}

function noteScroll() {
  clearTimeout(scrollTimer);
  history.replaceState({ scrollY }, "");
}

/** Go to an address inside the dashboard. @param {string} to @param {{replace?: boolean}} [how] */
export function go(to, { replace = false } = {}) {
  const url = new URL(to, BASE);
  const isSame = url.href === location.href;
  isReturning = false;
  if (replace || isSame) history.replaceState(null, "", url);
  else {
    noteScroll();
    history.pushState(null, "", url);
  }
  changed(currentRoute(), !replace, null);
}

/** @param {HTMLAnchorElement} link */
function isInside(link) {
  return (
    link.origin === BASE.origin &&
    link.pathname.startsWith(BASE.pathname) &&
    !link.pathname.startsWith(`${BASE.pathname}api/`) &&
    !link.pathname.startsWith(`${BASE.pathname}static/`)
  );
}

/** @param {string} part */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
