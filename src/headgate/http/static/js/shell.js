/** The frame around every page: where one can go, whether it follows what happens, and the keys that help. */

import { maySearchText, signOut } from "./api.js";
import { classes, h, render } from "./dom.js";
import { relative } from "./format.js";
import { help } from "./help.js";
import { icon } from "./icons.js";
import * as live from "./live.js";
import { button, empty } from "./parts.js";
import { choose, chosen, onChoice } from "./prefs.js";
import { address, go } from "./router.js";
import { toast, toastPlace } from "./toasts.js";

/** @typedef {import("./router.js").Route} Route */

/** @type {[string, string, string][]} name, address, second key after g */
const PAGES = [
  ["Overview", "overview", "o"],
  ["Queues", "queues", "q"],
  ["Jobs", "jobs", "j"],
  ["Limits", "limits", "l"],
  ["Schedules", "schedules", "s"],
  ["Nodes", "nodes", "n"],
  ["Audit", "audit", "a"],
];
const PARTS = /** @type {Record<string, string>} */ ({
  job: "jobs",
  batch: "jobs",
  limit: "limits",
  key: "limits",
  schedule: "schedules",
});

const LIVE_WORDS = {
  connecting: ["Connecting", "The page is about to follow what happens"],
  connected: ["Live", "The page follows what happens; press to pause it"],
  polling: ["Polling", "There is no stream, so the page asks every 5 seconds; press to pause it"],
  lost: ["Lost", "The server cannot be reached; the page keeps trying"],
  paused: ["Paused", "The page stands still; press to follow again"],
};

const JOB_ID = /^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$/i;

export class Shell {
  /** @param {HTMLElement} body */
  constructor(body) {
    /** @type {import("./api.js").Session | null} */
    this.session = null;
    /** @type {Route | null} */
    this.route = null;
    this.isOpen = false;
    this.frame = document.createElement("div");
    this.frame.className = "frame";
    this.main = document.createElement("main");
    this.main.id = "main";
    this.main.tabIndex = -1;
    body.replaceChildren(this.frame, this.main, toastPlace());
    this.pressedG = 0;
    live.follow(() => this.draw());
    onChoice(() => this.draw());
    document.addEventListener("keydown", (event) => this.#pressed(event));
    this.draw();
  }

  /** @param {Route} route */
  show(route) {
    this.route = route;
    this.isOpen = false;
    this.draw();
  }

  /** An empty place for another page. */
  newPlace() {
    const place = this.main.cloneNode(false);
    this.main.replaceWith(place);
    this.main = /** @type {HTMLElement} */ (place);
    return this.main;
  }

  /** @param {unknown} error @param {() => void} again */
  fail(error, again) {
    const text = error instanceof Error ? error.message : String(error);
    render(
      this.main,
      h(
        "div",
        { class: "panel", role: "alert" },
        h("h1", { class: "sr-only" }, "Headgate"),
        empty("The dashboard cannot begin", [
          text,
          h("span", { class: "block-space" }, button("Try again", { kind: "primary", icon: "retry" }, again)),
        ]),
      ),
    );
  }

  draw() {
    const title = this.session?.title ?? "Headgate";
    const here = this.route ? (PARTS[this.route.page] ?? this.route.page) : "";
    const theme = chosen().theme;
    const nextTheme = /** @type {const} */ ({ auto: "light", light: "dark", dark: "auto" })[theme];
    const more = maySearchText(this.session) ? "text in a payload" : "their task";
    const themeName = { auto: "Colours of the system", light: "Light colours", dark: "Dark colours" }[theme];
    render(
      this.frame,
      h(
        "a",
        { class: "skip", href: "#main", onclick: (/** @type {Event} */ event) => this.#skip(event) },
        "Skip to the page",
      ),
      h(
        "header",
        { class: "topbar" },
        h(
          "button",
          {
            type: "button",
            class: "quiet menu-button",
            "aria-label": "Menu",
            "aria-expanded": String(this.isOpen),
            "aria-controls": "nav",
            onclick: () => this.#toggle(),
          },
          icon(this.isOpen ? "close" : "menu"),
        ),
        h(
          "a",
          { class: "brand", href: "overview" },
          h("img", { src: "static/icon.svg", alt: "", width: 26, height: 26 }),
          h("span", null, title),
        ),
        h(
          "form",
          { class: "search", role: "search", onsubmit: (/** @type {SubmitEvent} */ event) => this.#search(event) },
          icon("search"),
          h("input", {
            type: "search",
            name: "text",
            id: "search",
            "aria-label": `Find a job by its id, or jobs by ${more}`,
            placeholder: `Job id, or ${more}`,
            autocomplete: "off",
            spellcheck: "false",
          }),
          h("kbd", { "aria-hidden": "true" }, "/"),
        ),
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
                chosen().zone === "utc" ? "Times are in UTC; press for local time" : "Times are local; press for UTC",
              "aria-label": chosen().zone === "utc" ? "Time zone: UTC" : "Time zone: local",
              onclick: () => choose({ zone: chosen().zone === "utc" ? "local" : "utc" }),
            },
            chosen().zone === "utc" ? "UTC" : "Local",
          ),
          h(
            "button",
            {
              type: "button",
              class: "quiet",
              title: themeName,
              "aria-label": `Theme: ${theme}`,
              onclick: () => choose({ theme: nextTheme }),
            },
            icon({ auto: "auto", light: "sun", dark: "moon" }[theme]),
          ),
          h(
            "button",
            {
              type: "button",
              class: "quiet help-button",
              title: "Help and shortcuts",
              "aria-label": "Help and shortcuts",
              onclick: () => void help(PAGES),
            },
            icon("help"),
          ),
        ),
      ),
      h(
        "nav",
        { id: "nav", class: classes("sidebar", this.isOpen && "open"), "aria-label": "Pages" },
        h(
          "ul",
          null,
          PAGES.map(([name, path, key]) =>
            h(
              "li",
              { key: path },
              h(
                "a",
                { href: path, "aria-current": here === path ? "page" : null },
                icon(path),
                h("span", null, name),
                this.#note(path),
                h("kbd", { "aria-hidden": "true" }, `g ${key}`),
              ),
            ),
          ),
        ),
        this.session &&
          h(
            "div",
            { class: "who" },
            h(
              "p",
              null,
              h("b", null, this.session.user || "no login"),
              h("span", { class: "role" }, this.session.read_only ? "read-only" : this.session.role),
            ),
            this.session.can_sign_out &&
              h(
                "p",
                null,
                h("button", { type: "button", class: "small", onclick: () => void this.#signOut() }, "Sign out"),
              ),
            h("p", { class: "store", title: this.session.store }, this.session.store),
            h("p", null, `Headgate ${this.session.version}`),
          ),
      ),
    );
  }

  #live() {
    const { state, heardAt } = live.current();
    const [word, title] = LIVE_WORDS[state];
    const isLost = state === "lost";
    return h(
      "button",
      {
        type: "button",
        class: `live live-${state}`,
        title,
        "aria-pressed": String(chosen().live),
        "aria-label": `Live updates: ${word}`,
        onclick: () => choose({ live: !chosen().live }),
      },
      icon(state === "paused" ? "paused" : isLost ? "gone" : "alive"),
      h("span", null, word, isLost && h("span", { class: "since" }, ` since ${relative(heardAt).replace(" ago", "")}`)),
    );
  }

  /** How many there are of what needs to be looked at. @param {string} path */
  #note(path) {
    const overview = live.current().overview;
    if (!overview) return null;
    const paused = overview.queues?.filter((/** @type {any} */ each) => each.paused_at).length ?? 0;
    const notes = /** @type {Record<string, [number, string]>} */ ({
      schedules: [overview.overdue_schedules?.length ?? 0, "overdue"],
      nodes: [overview.nodes?.silent ?? 0, "silent"],
      queues: [paused, "paused"],
    });
    const [many, word] = notes[path] ?? [0, ""];
    return (
      many > 0 &&
      h(
        "span",
        { class: "nav-note", title: `${many} ${word}` },
        h("span", { class: "sr-only" }, `${word}: `),
        String(many),
      )
    );
  }

  #toggle() {
    this.isOpen = !this.isOpen;
    this.draw();
  }

  async #signOut() {
    try {
      await signOut();
    } catch (error) {
      toast(error instanceof Error ? error.message : String(error), "bad");
    }
  }

  /** @param {Event} event */
  #skip(event) {
    event.preventDefault();
    this.main.focus();
  }

  /** @param {SubmitEvent} event */
  #search(event) {
    event.preventDefault();
    const input = /** @type {HTMLInputElement} */ (document.getElementById("search"));
    const text = input.value.trim();
    if (!text) return;
    input.value = "";
    input.blur();
    if (JOB_ID.test(text)) go(address(["jobs", text]));
    else go(address(["jobs"], maySearchText(this.session) ? { text: text.slice(0, 200) } : { task: text }));
  }

  /** @param {KeyboardEvent} event */
  #pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target instanceof Element ? event.target : null;
    if (event.key === "Escape" && this.isOpen) this.#toggle();
    if (event.key === "Escape" && target?.id === "search") /** @type {HTMLElement} */ (target).blur();
    if (target?.closest("input, textarea, select, dialog, [contenteditable]")) return;
    const second = PAGES.find(([, , key]) => key === event.key);
    if (this.pressedG && event.timeStamp - this.pressedG < 1200 && second) go(second[1]);
    else if (event.key === "/") {
      event.preventDefault();
      document.getElementById("search")?.focus();
    } else if (event.key === "?") void help(PAGES);
    else if (event.key === "p") choose({ live: !chosen().live });
    this.pressedG = event.key === "g" ? event.timeStamp : 0;
  }
}
