/** A page: loads its data, shows it, and refreshes it on live updates. */

import { ApiError, change, messageOf } from "./api.js";
import { ask } from "./dialogs.js";
import { h, render } from "./dom.js";
import { now, setNow } from "./format.js";
import { t, word } from "./language.js";
import * as live from "./live.js";
import { button, empty, heading, skeleton } from "./parts.js";
import { preferences } from "./prefs.js";
import { noteVisit } from "./recent.js";
import { address, go, restoreScroll } from "./router.js";
import { toast } from "./toasts.js";

/** @typedef {import("./router.js").Route} Route */
/** @typedef {import("./api.js").Session} Session */

/**
 * The definition of a page. `load` reads its data: at first, on each live update, and `every` so many milliseconds.
 * `view` renders the data. `ui` returns the state of one visit, such as the selected rows. A page that `usesStream`
 * renders the overview from the stream instead of loading it again. While `isFrozen` returns true the page does not
 * change, so that rows do not move under the pointer.
 *
 * @typedef {{
 *   title: (route: Route) => string,
 *   load: (context: Context, signal: AbortSignal) => Promise<any>,
 *   view: (context: Context) => import("./dom.js").Children,
 *   ui?: () => any,
 *   usesStream?: boolean,
 *   isFrozen?: (context: Context) => boolean,
 *   every?: number,
 * }} PageDefinition
 */

/** Milliseconds between an update and the refresh: updates arrive in bursts. */
const REFRESH_DELAY = 1_000;
/** A slow page waits this many times its loading time before each refresh, to bound the load on the store. */
const SLOW_PAGE_FACTOR = 5;
const AFTER_ACTION = 150;
/** By how many milliseconds this browser and the server may each misjudge the time of the store. */
const CLOCK_ERROR = 100;
/** On a touch screen the row that was touched last stays hovered, so only the focus counts there. */
const LIST_IN_USE = matchMedia("(hover: hover)").matches ? "tbody:is(:hover, :focus-within)" : "tbody:focus-within";

/** Milliseconds without input after which a list is no longer in use. */
const IDLE_AFTER = 5_000;
let lastInputAt = -IDLE_AFTER;
for (const kind of ["pointermove", "keydown"]) addEventListener(kind, () => void (lastInputAt = performance.now()));

/** The argument of a page's functions. */
export class Context {
  /** @param {Page} page @param {Session} session */
  constructor(page, session) {
    this.page = page;
    this.session = session;
    /** @type {any} */
    this.data = null;
    /** @type {any} */
    this.ui = page.definition.ui?.() ?? {};
  }

  get route() {
    return this.page.route;
  }

  /** Why this user may not do it; null if they may. @param {"operate" | "admin"} permission */
  denied(permission) {
    if (this.session.read_only) return t("This dashboard is read-only");
    if (this.session.can.includes(permission)) return null;
    const needed = permission === "admin" ? "admin" : "operator";
    return t("This needs the role {needed}; your role is {role}", { needed: word(needed), role: word(this.session.role) });
  }

  /** Aborted when the page is left. */
  get left() {
    return this.page.left.signal;
  }

  /** Whether the user moves in a list of the page. A pointer at rest does not count. */
  get isListInUse() {
    return performance.now() - lastInputAt < IDLE_AFTER && this.page.container.querySelector(LIST_IN_USE) !== null;
  }

  /** Whether an update is not shown yet because the page is frozen. */
  get hasHiddenUpdate() {
    return this.page.hasHiddenUpdate;
  }

  /** Change `ui` and render the page. @param {object} [ui] */
  update(ui) {
    Object.assign(this.ui, ui);
    this.page.show();
  }

  refresh() {
    return this.page.refresh();
  }

  /** Change the filters in the address. @param {Record<string, string | null>} query @param {{replace?: boolean}} [how] */
  setQuery(query, how) {
    const all = Object.fromEntries(this.route.query);
    go(
      address(location.pathname.slice(new URL(document.baseURI).pathname.length).split("/").map(decodeURIComponent), {
        ...all,
        ...query,
      }),
      how,
    );
  }

  /**
   * Send a change, show a message with the result, and refresh the page. With a `question`, ask for confirmation first.
   *
   * @param {{
   *   question?: import("./dialogs.js").Question, method?: "POST" | "DELETE", path: string, body?: object,
   *   done: string | ((response: any) => string), then?: (response: any) => void,
   *   undo?: {path: string, body?: object, done: string},
   * }} action `undo` is the change that takes it back
   * @returns {Promise<boolean>} whether the change was made
   */
  async act({ question, method = "POST", path, body, done, then, undo }) {
    if (question && !(await ask(question))) return false;
    this.page.pauseRefreshes();
    try {
      const response = await change(method, path, body);
      const action = undo && { label: t("Undo"), run: () => void this.act(undo) };
      // What was so before must not be undone.
      if (response?.changed === false) toast(t("Nothing was changed"), "plain");
      else toast(typeof done === "string" ? done : done(response), "good", action);
      then?.(response);
      setTimeout(() => void this.refresh(), AFTER_ACTION);
      return true;
    } catch (error) {
      toast(messageOf(error), "bad");
      void this.refresh();
      return false;
    }
  }
}

/** One visit of a page. */
export class Page {
  /**
   * @param {PageDefinition} definition
   * @param {Route} route
   * @param {Element} container
   * @param {Session} session
   * @param {number | null} [scrollY] where to scroll to once it is loaded
   */
  constructor(definition, route, container, session, scrollY = null) {
    this.definition = definition;
    this.route = route;
    this.container = container;
    this.context = new Context(this, session);
    /** @type {unknown} */
    this.error = null;
    this.isLoaded = false;
    this.isBusy = false;
    this.isStale = false;
    this.isLoading = false;
    this.isClosed = false;
    this.loadTime = 0;
    this.loadedFrom = 0;
    this.scrollY = scrollY;
    this.request = new AbortController();
    this.left = new AbortController();
    this.unsubscribe = live.subscribe((hasUpdate, readAt) => hasUpdate && this.#onUpdate(readAt));
    this.refreshTimer = 0;
    this.interval = definition.every ? setInterval(() => this.#scheduleRefresh(), definition.every) : 0;
    this.onVisible = () => !document.hidden && this.isStale && this.#scheduleRefresh();
    document.addEventListener("visibilitychange", this.onVisible);
    this.show();
    void this.refresh();
  }

  /** Show the same page with other filters. @param {Route} route @param {number | null} [scrollY] */
  setRoute(route, scrollY = null) {
    this.route = route;
    this.scrollY = scrollY;
    this.isBusy = true;
    this.show();
    return this.refresh();
  }

  /** Stop refreshing during a change, which may remove what the page shows. It ends with a refresh or another page. */
  pauseRefreshes() {
    clearTimeout(this.refreshTimer);
    this.refreshTimer = 0;
    this.request.abort();
    this.isLoading = true;
  }

  close() {
    this.isClosed = true;
    this.unsubscribe();
    this.request.abort();
    this.left.abort();
    clearTimeout(this.refreshTimer);
    clearInterval(this.interval);
    document.removeEventListener("visibilitychange", this.onVisible);
  }

  /** Load the data and show it. A load that is still running is aborted. */
  async refresh() {
    // As after an action that leads to another page.
    if (this.isClosed) return;
    clearTimeout(this.refreshTimer);
    this.refreshTimer = 0;
    this.isStale = false;
    this.request.abort();
    const request = (this.request = new AbortController());
    const startedAt = performance.now();
    this.loadedFrom = now();
    let isFirst = false;
    this.isLoading = true;
    try {
      const data = await this.definition.load(this.context, request.signal);
      if (request.signal.aborted) return;
      this.context.data = data;
      if (data?.now) setNow(data.now);
      this.error = null;
      isFirst = !this.isLoaded;
      noteVisit(this.route);
      this.isLoaded = true;
    } catch (error) {
      if (request.signal.aborted) return;
      this.error = error;
    }
    this.isLoading = this.isBusy = false;
    this.loadTime = performance.now() - startedAt;
    this.show();
    // On a narrow screen the current tab may be out of view.
    if (isFirst)
      this.container.querySelector(".tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
    if (this.scrollY !== null) restoreScroll(this.scrollY);
    this.scrollY = null;
    // An update arrived during the load.
    if (this.isStale) this.#scheduleRefresh();
  }

  get hasHiddenUpdate() {
    return this.isStale && this.#isFrozen();
  }

  #isFrozen() {
    return this.isLoaded && !this.error && (this.definition.isFrozen?.(this.context) ?? false);
  }

  show() {
    this.container.setAttribute("aria-busy", String(this.isBusy || (!this.isLoaded && !this.error)));
    if (this.isLoaded) render(this.container, this.error ? this.#staleNotice() : null, this.definition.view(this.context));
    else if (this.error) render(this.container, this.#title(), this.#errorPanel());
    else render(this.container, this.#title(), h("div", { class: "panel loading", key: "skeleton" }, skeleton(8)));
  }

  /** @param {string} [readAt] when the overview of the update was read */
  #onUpdate(readAt) {
    // What the page shows was read later. A load too many does no harm, but an update that is left out is lost.
    const isOld = readAt !== undefined && Date.parse(readAt) <= this.loadedFrom - CLOCK_ERROR;
    if (isOld && !this.definition.usesStream && !this.error) return;
    if (!this.definition.usesStream || this.error) this.#scheduleRefresh();
    else if (preferences().live && !document.hidden) this.show();
  }

  /** Refresh after a delay. A hidden tab and a running load only note that the data is stale. */
  #scheduleRefresh() {
    if (!preferences().live) return;
    if (document.hidden || this.isLoading) this.isStale = true;
    else if (!this.refreshTimer) {
      // A load that waited in vain for the server or its store says nothing of the page.
      const isAway = this.error instanceof ApiError && (this.error.status === 0 || this.error.code === "storage_unavailable");
      const delay = Math.max(REFRESH_DELAY, isAway ? 0 : SLOW_PAGE_FACTOR * this.loadTime);
      this.refreshTimer = window.setTimeout(() => this.#refreshUnlessFrozen(), delay);
    }
  }

  #refreshUnlessFrozen() {
    this.refreshTimer = 0;
    if (!this.#isFrozen()) {
      void this.refresh();
      return;
    }
    if (!this.isStale) {
      this.isStale = true;
      this.show();
    }
    this.#scheduleRefresh();
  }

  #title() {
    return heading(this.definition.title(this.route));
  }

  #errorPanel() {
    const { title, text } = describeError(this.error);
    return h(
      "div",
      { class: "panel", key: "failed", role: "alert" },
      empty(title, [
        text,
        h(
          "span",
          { class: "block-space" },
          button(t("Try again"), { kind: "primary", icon: "retry" }, () => void this.refresh()),
        ),
      ]),
    );
  }

  #staleNotice() {
    const { title, text } = describeError(this.error);
    return h(
      "div",
      { class: "notice notice-bad", key: "stale", role: "alert" },
      h("div", null, h("b", null, `${title}. `), text, " ", t("The data below may be out of date.")),
      button(t("Try again"), {}, () => void this.refresh()),
    );
  }
}

/** The title and the text that an error shows. @param {unknown} error */
function describeError(error) {
  if (!(error instanceof ApiError)) {
    console.error(error);
    return { title: t("Error on this page"), text: String(error) };
  }
  const titles = /** @type {Record<number, string>} */ ({
    0: t("No response"),
    401: t("You are signed out"),
    403: t("Not allowed"),
    404: t("Not found"),
    429: t("Too many requests"),
    503: t("Not available"),
  });
  const codes = /** @type {Record<string, string>} */ ({
    job_not_found: t("Job not found"),
    batch_not_found: t("Batch not found"),
    schedule_not_found: t("Schedule not found"),
    unknown_limit: t("Limit not found"),
    storage_unavailable: t("The store does not respond"),
    storage_unusable: t("The store cannot be used"),
    search_too_long: t("The search took too long"),
    too_many_searches: t("Too many searches"),
  });
  return {
    title: codes[error.code] ?? titles[error.status] ?? t("Request failed"),
    text: `${error.message.charAt(0).toUpperCase()}${error.message.slice(1)}${/[.!?…]$/.test(error.message) ? "" : "."}`,
  };
}
