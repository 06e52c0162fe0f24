/** The frame around every page: navigation, search, live updates, keyboard shortcuts. */

import { canSearchText, messageOf, signOut } from "./api.js";
import { LANGUAGE, LANGUAGES } from "./catalogue.js";
import { classes, h, render } from "./dom.js";
import { select } from "./fields.js";
import "./finder.js";
import { coarse } from "./format.js";
import { actionsOn } from "./found_actions.js";
import { help } from "./help.js";
import { icon } from "./icons.js";
import { enqueueJob } from "./job/enqueue.js";
import { languageName, setLanguage, t, word } from "./language.js";
import * as live from "./live.js";
import { button, empty } from "./parts.js";
import { onPreferenceChange, preferences, setPreferences } from "./prefs.js";
import { go } from "./router.js";
import { createSchedule } from "./schedule_form.js";
import { toast, toastContainer } from "./toasts.js";
import { verbActions } from "./verbs.js";

/** @typedef {import("./router.js").Route} Route */

/** @type {[string, string, string][]} name, address, second key after g */
const PAGES = [
  [t("Overview"), "overview", "o"],
  [t("Queues"), "queues", "q"],
  [t("Tasks"), "tasks", "t"],
  [t("Jobs"), "jobs", "j"],
  [t("Batches"), "batches", "b"],
  [t("Failures"), "failures", "f"],
  [t("Limits"), "limits", "l"],
  [t("Schedules"), "schedules", "s"],
  [t("Nodes"), "nodes", "n"],
  [t("Audit"), "audit", "a"],
];
/** The navigation entry of pages that have none of their own. */
const PARENTS = /** @type {Record<string, string>} */ ({
  job: "jobs",
  batch: "batches",
  queue: "queues",
  task: "tasks",
  limit: "limits",
  key: "limits",
  schedule: "schedules",
  failure: "failures",
});

const LIVE_LABELS = {
  connecting: [t("Connecting"), t("Connecting to the live stream")],
  connected: [t("Live"), t("The page updates itself; press to pause")],
  polling: [t("Polling"), t("No live stream: the page updates every 5 seconds; press to pause")],
  lost: [t("Offline"), t("The server or its store does not respond; the page keeps trying")],
  paused: [t("Paused"), t("The page does not update itself; press to resume")],
};

/** The icon of the page, which is in the page itself. */
const ICON = document.querySelector("link[rel=icon]")?.getAttribute("href") ?? "";

const NEXT_THEME = /** @type {const} */ ({ auto: "light", light: "dark", dark: "auto" });

export class Shell {
  /** @param {HTMLElement} body */
  constructor(body) {
    /** @type {import("./api.js").Session | null} */
    this.session = null;
    /** @type {Route | null} */
    this.route = null;
    /** @type {import("./page.js").Page | null} */
    this.page = null;
    this.isOpen = false;
    this.frame = document.createElement("div");
    this.frame.className = "frame";
    this.main = document.createElement("main");
    this.main.id = "main";
    this.main.tabIndex = -1;
    body.replaceChildren(this.frame, this.main, toastContainer());
    /** When g was pressed; 0 if another key followed. */
    this.pressedG = 0;
    live.subscribe(() => this.draw());
    onPreferenceChange(() => this.draw());
    document.addEventListener("keydown", (event) => this.#onKey(event));
    this.draw();
  }

  /** @param {Route} route */
  show(route) {
    this.route = route;
    this.isOpen = false;
    this.draw();
  }

  /** Replace the main element by an empty one, for another page. */
  replaceMain() {
    const main = this.main.cloneNode(false);
    this.main.replaceWith(main);
    this.main = /** @type {HTMLElement} */ (main);
    return this.main;
  }

  /** Show why the dashboard cannot start. @param {unknown} error @param {() => void} retry */
  showError(error, retry) {
    const text = messageOf(error);
    render(
      this.main,
      h(
        "div",
        { class: "panel", role: "alert" },
        h("h1", { class: "sr-only" }, "Headgate"),
        empty(t("The dashboard cannot start"), [
          text,
          h("span", { class: "block-space" }, button(t("Try again"), { kind: "primary", icon: "retry" }, retry)),
        ]),
      ),
    );
  }

  draw() {
    const title = this.session?.title ?? "Headgate";
    const current = this.route ? (PARENTS[this.route.page] ?? this.route.page) : "";
    const theme = preferences().theme;
    const nextTheme = NEXT_THEME[theme];
    const themeName = { auto: t("System theme"), light: t("Light theme"), dark: t("Dark theme") }[theme];
    render(
      this.frame,
      h(
        "a",
        { class: "skip", href: "#main", onclick: (/** @type {Event} */ event) => this.#skipToMain(event) },
        t("Skip to content"),
      ),
      h(
        "header",
        { class: "topbar" },
        h(
          "button",
          {
            type: "button",
            class: "quiet menu-button",
            "aria-label": t("Menu"),
            "aria-expanded": String(this.isOpen),
            "aria-controls": "nav",
            onclick: () => this.#toggle(),
          },
          icon(this.isOpen ? "close" : "menu"),
        ),
        h(
          "a",
          { class: "brand", href: "overview" },
          h("img", { src: ICON, alt: "", width: 26, height: 26 }),
          h("span", null, title),
        ),
        h("hg-finder", { class: "search", role: "search", context: this.#finderContext() }),
        this.#live(),
        h(
          "div",
          { class: "tools" },
          h(
            "button",
            {
              type: "button",
              class: "quiet zone",
              title:
                preferences().zone === "utc" ? t("Times are in UTC; press for local time") : t("Times are local; press for UTC"),
              "aria-label": preferences().zone === "utc" ? t("Time zone: UTC") : t("Time zone: local"),
              onclick: () => setPreferences({ zone: preferences().zone === "utc" ? "local" : "utc" }),
            },
            preferences().zone === "utc" ? "UTC" : t("Local"),
          ),
          h(
            "button",
            {
              type: "button",
              class: "quiet",
              title: themeName,
              "aria-label": { auto: t("Theme: auto"), light: t("Theme: light"), dark: t("Theme: dark") }[theme],
              onclick: () => setPreferences({ theme: nextTheme }),
            },
            icon({ auto: "auto", light: "sun", dark: "moon" }[theme]),
          ),
          h(
            "button",
            {
              type: "button",
              class: "quiet help-button",
              title: t("Help and keyboard shortcuts"),
              "aria-label": t("Help and keyboard shortcuts"),
              onclick: () => void help(PAGES),
            },
            icon("help"),
          ),
        ),
      ),
      h(
        "nav",
        { id: "nav", class: classes("sidebar", this.isOpen && "open"), "aria-label": t("Pages") },
        h(
          "ul",
          null,
          PAGES.map(([name, path, key]) =>
            h(
              "li",
              { key: path },
              h(
                "a",
                { href: path, "aria-current": current === path ? "page" : null },
                icon(path),
                h("span", null, name),
                this.#count(path),
                h("kbd", { "aria-hidden": "true" }, `g ${key}`),
              ),
            ),
          ),
        ),
        this.session &&
          h(
            "div",
            { class: "account" },
            h(
              "p",
              null,
              h("b", null, this.session.user || t("no sign-in")),
              h("span", { class: "role" }, this.session.read_only ? t("read-only") : word(this.session.role)),
            ),
            this.session.can_sign_out &&
              h(
                "p",
                null,
                h("button", { type: "button", class: "small", onclick: () => void this.#signOut() }, t("Sign out")),
              ),
            select(
              t("Language"),
              LANGUAGE,
              LANGUAGES.map((each) => [each, languageName(each)]),
              setLanguage,
            ),
            select(
              t("Density"),
              preferences().density,
              [
                ["comfortable", t("Comfortable")],
                ["compact", t("Compact")],
              ],
              (density) => setPreferences({ density: density === "compact" ? "compact" : "comfortable" }),
            ),
            h("p", { class: "store", title: this.session.store }, this.session.store),
            h("p", null, `Headgate ${this.session.version}`),
          ),
      ),
    );
  }

  #live() {
    const { state, answeredAt } = live.current();
    const [label, title] = LIVE_LABELS[state];
    const isLost = state === "lost";
    return h(
      "button",
      {
        type: "button",
        class: `live live-${state}`,
        title,
        "aria-pressed": String(preferences().live),
        "aria-label": t("Live updates: {label}", { label }),
        onclick: () => setPreferences({ live: !preferences().live }),
      },
      icon(state === "paused" ? "paused" : isLost ? "gone" : "alive"),
      h("span", null, label, isLost && h("span", { class: "since" }, " ", t("for {time}", { time: coarse((Date.now() - answeredAt) / 1000) }))),
    );
  }

  /** The number of problems on a page, next to its navigation entry. @param {string} path */
  #count(path) {
    const overview = live.current().overview;
    if (!overview) return null;
    const paused = overview.queues?.filter((/** @type {any} */ each) => each.paused_at).length ?? 0;
    const problems = /** @type {Record<string, [number, string]>} */ ({
      schedules: [overview.overdue_schedules?.length ?? 0, t("overdue")],
      nodes: [overview.nodes?.silent ?? 0, t("silent")],
      queues: [paused, t("paused")],
    });
    const [count, state] = problems[path] ?? [0, ""];
    return (
      count > 0 &&
      h(
        "span",
        { class: "nav-count", title: `${count} ${state}` },
        h("span", { class: "sr-only" }, `${state}: `),
        String(count),
      )
    );
  }

  #toggle() {
    this.isOpen = !this.isOpen;
    this.draw();
  }

  async #signOut(isEverywhere = false) {
    try {
      await signOut(isEverywhere);
    } catch (error) {
      toast(messageOf(error), "bad");
    }
  }

  /** @param {Event} event */
  #skipToMain(event) {
    event.preventDefault();
    this.main.focus();
  }

  /** What the search box offers besides what the API finds. */
  #finderContext() {
    const { live: isLive, density, theme, zone } = preferences();
    const nextTheme = NEXT_THEME[theme];
    return {
      canSearchText: canSearchText(this.session),
      pages: PAGES.map(([name, path]) => ({ name, href: path })),
      actionsOn: (/** @type {any} */ found) => (this.page ? actionsOn(this.page.context, found) : []),
      verbActions: (/** @type {import("./verbs.js").TypedVerb} */ typed, /** @type {any[]} */ found, /** @type {Record<string, string>} */ filters) =>
        this.page ? verbActions(this.page.context, typed, found, filters) : [],
      actions: [
        ...(this.session?.can.includes("operate")
          ? [
              { name: t("Enqueue a job"), act: () => void enqueueJob() },
              { name: t("Create a schedule"), act: () => void createSchedule() },
            ]
          : []),
        { name: isLive ? t("Pause live updates") : t("Resume live updates"), act: () => setPreferences({ live: !isLive }) },
        { name: zone === "utc" ? t("Show local times") : t("Show times in UTC"), act: () => setPreferences({ zone: zone === "utc" ? "local" : "utc" }) },
        { name: { auto: t("Use the system theme"), light: t("Use the light theme"), dark: t("Use the dark theme") }[nextTheme], act: () => setPreferences({ theme: nextTheme }) },
        density === "compact"
          ? { name: t("Use comfortable rows"), act: () => setPreferences({ density: "comfortable" }) }
          : { name: t("Use compact rows"), act: () => setPreferences({ density: "compact" }) },
        { name: t("Help and keyboard shortcuts"), act: () => void help(PAGES) },
        ...(this.session?.can_sign_out
          ? [
              { name: t("Sign out"), act: () => void this.#signOut() },
              { name: t("Sign out everywhere"), act: () => void this.#signOut(true) },
            ]
          : []),
      ],
    };
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !document.querySelector("dialog[open]")) {
      event.preventDefault();
      document.getElementById("search")?.focus();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target instanceof Element ? event.target : null;
    if (event.key === "Escape" && this.isOpen) this.#toggle();
    if (target?.closest("input, textarea, select, dialog, [contenteditable]")) return;
    const second = PAGES.find(([, , key]) => key === event.key);
    if (this.pressedG && event.timeStamp - this.pressedG < 1200 && second) go(second[1]);
    else if (event.key === "/") {
      event.preventDefault();
      document.getElementById("search")?.focus();
    } else if (event.key === "?") void help(PAGES);
    else if (event.key === "p") setPreferences({ live: !preferences().live });
    this.pressedG = event.key === "g" ? event.timeStamp : 0;
  }
}
