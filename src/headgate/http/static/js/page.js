/** A page: what it asks for, how that looks, and how it follows what happens. */

import { ApiError, change } from "./api.js";
import { ask } from "./dialogs.js";
import { h, render } from "./dom.js";
import { setNow } from "./format.js";
import * as live from "./live.js";
import { button, empty, heading, skeleton } from "./parts.js";
import { chosen } from "./prefs.js";
import { address, go } from "./router.js";
import { toast } from "./toasts.js";

/** @typedef {import("./router.js").Route} Route */
/** @typedef {import("./api.js").Session} Session */

/**
 * What a page is. `load` asks for its data, again whenever something happens, and every so many milliseconds; `view` says
 * how they look; `ui` is what only this page and this visit know, such as which rows are chosen. One that `showsNews` by
 * itself takes from the stream what it tells, and does not ask for it again. One that `standsStill` shows nothing new for
 * as long as somebody is about to choose from it.
 *
 * @typedef {{
 *   title: (route: Route) => string,
 *   load: (context: Context, signal: AbortSignal) => Promise<any>,
 *   view: (context: Context) => import("./dom.js").Children,
 *   ui?: () => any,
 *   showsNews?: boolean,
 *   standsStill?: (context: Context) => boolean,
 *   every?: number,
 * }} PageDefinition
 */

/** News come in bursts; a page asks again once for each. */
const SETTLE = 1_000;
/** A page whose questions take long asks so many times less often than it could: others want to know things, too. */
const SHARE = 5;
const AFTER_ACTION = 150;
/** Without a pointer, what was touched last stays hovered. */
const ABOUT_TO_CHOOSE = matchMedia("(hover: hover)").matches ? "tbody:is(:hover, :focus-within)" : "tbody:focus-within";

const RESTS_AFTER = 5_000;
let movedAt = -RESTS_AFTER;
for (const kind of ["pointermove", "keydown"]) addEventListener(kind, () => void (movedAt = performance.now()));

/** What a page's functions are given. */
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

  /** Why this person may not do it; null if they may. @param {"operate" | "admin"} what */
  denied(what) {
    if (this.session.read_only) return "This dashboard only shows; it was started read-only";
    if (this.session.can.includes(what)) return null;
    const needs = what === "admin" ? "admin" : "operator";
    return `${this.session.user || "You"} may not do this: it needs the role ${needs}, and yours is ${this.session.role}`;
  }

  /** Whether somebody moves in a list of the page. A pointer that rests there is of one who only looks. */
  get isPointedAt() {
    return performance.now() - movedAt < RESTS_AFTER && this.page.place.querySelector(ABOUT_TO_CHOOSE) !== null;
  }

  /** Whether there is something new that is not shown, as somebody is about to choose from what is. */
  get isHeld() {
    return this.page.isHeld;
  }

  /** Show what `ui` says now. @param {object} [ui] */
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
   * Do something, say what came of it, and show how things are then. Asks first, if there is a `question`.
   *
   * @param {{
   *   question?: import("./dialogs.js").Question, method?: "POST" | "DELETE", path: string, body?: object,
   *   done: string | ((answer: any) => string), then?: (answer: any) => void,
   * }} deed
   * @returns {Promise<boolean>} whether it was done
   */
  async act({ question, method = "POST", path, body, done, then }) {
    if (question && !(await ask(question))) return false;
    try {
      const answer = await change(method, path, body);
      toast(typeof done === "string" ? done : done(answer));
      then?.(answer);
      setTimeout(() => void this.refresh(), AFTER_ACTION);
      return true;
    } catch (error) {
      toast(error instanceof Error ? error.message : String(error), "bad");
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
   * @param {Element} place
   * @param {Session} session
   */
  constructor(definition, route, place, session) {
    this.definition = definition;
    this.route = route;
    this.place = place;
    this.context = new Context(this, session);
    /** @type {unknown} */
    this.error = null;
    this.isLoaded = false;
    this.isBusy = false;
    this.isStale = false;
    this.isAsking = false;
    this.tookLong = 0;
    this.request = new AbortController();
    this.unfollow = live.follow((isNews) => isNews && this.#news());
    this.timer = 0;
    this.ticker = definition.every ? setInterval(() => this.#soon(), definition.every) : 0;
    this.onVisible = () => !document.hidden && this.isStale && this.#soon();
    document.addEventListener("visibilitychange", this.onVisible);
    this.show();
    void this.refresh();
  }

  /** The same page, with other filters. @param {Route} route */
  move(route) {
    this.route = route;
    this.isBusy = true;
    this.show();
    return this.refresh();
  }

  leave() {
    this.unfollow();
    this.request.abort();
    clearTimeout(this.timer);
    clearInterval(this.ticker);
    document.removeEventListener("visibilitychange", this.onVisible);
  }

  /** Ask for the data again. What was asked before and is not answered yet is of no interest any more. */
  async refresh() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.isStale = false;
    this.request.abort();
    const request = (this.request = new AbortController());
    const beganAt = performance.now();
    let isFirst = false;
    this.isAsking = true;
    try {
      const data = await this.definition.load(this.context, request.signal);
      if (request.signal.aborted) return;
      this.context.data = data;
      if (data?.now) setNow(data.now);
      this.error = null;
      isFirst = !this.isLoaded;
      this.isLoaded = true;
    } catch (error) {
      if (request.signal.aborted) return;
      this.error = error;
    }
    this.isAsking = this.isBusy = false;
    this.tookLong = performance.now() - beganAt;
    this.show();
    // Where there is little room, the tab that was chosen may be out of sight.
    if (isFirst)
      this.place.querySelector(".tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
    // What has happened while it asked.
    if (this.isStale) this.#soon();
  }

  get isHeld() {
    return this.isStale && this.#standsStill();
  }

  #standsStill() {
    return this.isLoaded && !this.error && (this.definition.standsStill?.(this.context) ?? false);
  }

  show() {
    this.place.setAttribute("aria-busy", String(this.isBusy || (!this.isLoaded && !this.error)));
    if (this.isLoaded) render(this.place, this.error ? this.#stale() : null, this.definition.view(this.context));
    else if (this.error) render(this.place, this.#title(), this.#failed());
    else render(this.place, this.#title(), h("div", { class: "panel loading", key: "skeleton" }, skeleton(8)));
  }

  #news() {
    if (!this.definition.showsNews || this.error) this.#soon();
    else if (chosen().live && !document.hidden) this.show();
  }

  /** Something happened: ask again in a moment, if somebody looks. An answer that is on its way is waited for. */
  #soon() {
    if (!chosen().live) return;
    if (document.hidden || this.isAsking) this.isStale = true;
    else if (!this.timer) this.timer = window.setTimeout(() => this.#now(), Math.max(SETTLE, SHARE * this.tookLong));
  }

  #now() {
    this.timer = 0;
    if (!this.#standsStill()) {
      void this.refresh();
      return;
    }
    if (!this.isStale) {
      this.isStale = true;
      this.show();
    }
    this.#soon();
  }

  #title() {
    return heading(this.definition.title(this.route));
  }

  #failed() {
    const { title, text } = told(this.error);
    return h(
      "div",
      { class: "panel", key: "failed", role: "alert" },
      empty(title, [
        text,
        h(
          "span",
          { class: "block-space" },
          button("Try again", { kind: "primary", icon: "retry" }, () => void this.refresh()),
        ),
      ]),
    );
  }

  #stale() {
    const { title, text } = told(this.error);
    return h(
      "div",
      { class: "notice notice-bad", key: "stale", role: "alert" },
      h("div", null, h("b", null, `${title}. `), text, " What is shown may be old."),
      button("Try again", {}, () => void this.refresh()),
    );
  }
}

/** An error in words. @param {unknown} error */
function told(error) {
  if (!(error instanceof ApiError)) {
    console.error(error);
    return { title: "This page is broken", text: String(error) };
  }
  const titles = /** @type {Record<number, string>} */ ({
    0: "No answer",
    401: "You are not logged in any more",
    403: "You may not see this",
    404: "There is no such thing",
    429: "Too many requests",
    503: "The store does not answer",
  });
  return {
    title: titles[error.status] ?? "That did not work",
    text: `${error.message.charAt(0).toUpperCase()}${error.message.slice(1)}${/[.!?…]$/.test(error.message) ? "" : "."}`,
  };
}
