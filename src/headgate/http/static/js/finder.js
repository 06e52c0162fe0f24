/** `<hg-finder>`: one box that finds jobs, tasks, queues, limits, keys, schedules, batches, nodes, pages and actions. */

import { get, messageOf } from "./api.js";
import { filterNames } from "./commands.js";
import { h, render } from "./dom.js";
import * as format from "./format.js";
import { icon } from "./icons.js";
import { t, word } from "./language.js";
import { bucketHref, commandLine } from "./parts.js";
import { recentFirst, recentObjects } from "./recent.js";
import { address, go } from "./router.js";
import { VERBS, parseVerb } from "./verbs.js";

/**
 * An option of the list: `href` or `act` is what it does; `complete` is the text that it puts into the box instead.
 *
 * An option with a `preview` shows it while it is selected, and acts only after that.
 *
 * @typedef {{
 *   kind: string, name: string, detail?: string | null, href?: string, act?: () => void, complete?: string,
 *   preview?: () => Promise<import("./verbs.js").Preview>,
 * }} Option
 * @typedef {{name: string, act: () => void}} Action
 * @typedef {{
 *   canSearchText: boolean, pages: {name: string, href: string}[], actions: Action[], actionsOn: (found: any) => Action[],
 *   verbActions: (typed: import("./verbs.js").TypedVerb, found: any[], filters: Record<string, string>) => import("./verbs.js").VerbAction[],
 * }} FinderContext
 * @typedef {{of: string, text: string, command: string, act?: () => void, error: string, isReady: boolean}} Preview
 * @typedef {{name: string, value: string, isClosed: boolean}} Word
 */

/** Milliseconds after the last keystroke until the API is asked. */
const DELAY = 120;
const LONGEST = 200;
const JOB_ID = /^([0-7][0-9a-v]{12}|[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12})$/;
/** `name:value`, whose value may be quoted; or any other word. */
const WORDS = /(?:(\w+):(?:"([^"]*)("?)|(\S*))|(\S+))(\s|$)/g;

/** The values of filters that have few. @type {Record<string, string[]>} */
const VALUES = {
  state: ["waiting", "running", "succeeded", "failed", "cancelled", "skipped"],
  view: ["ready", "throttled", "scheduled", "blocked"],
};
/** @type {Preview} */
const NO_PREVIEW = { of: "", text: "", command: "", error: "", isReady: false };
/** The filters whose values the API completes. */
const NAMED = ["task", "queue", "limit", "key", "schedule", "batch", "node"];

class FinderElement extends HTMLElement {
  /** @type {FinderContext} */
  #context = { canSearchText: false, pages: [], actions: [], actionsOn: () => [], verbActions: () => [] };
  #text = "";
  #isOpen = false;
  #at = 0;
  /** What the API has found, and for which question. @type {{question: string, items: any[]}} */
  #found = { question: "", items: [] };
  #error = "";
  /** Of the option that is selected, if it has one; `of` is its question and name. @type {Preview} */
  #preview = NO_PREVIEW;
  #timer = 0;
  #request = new AbortController();

  connectedCallback() {
    this.#draw();
  }

  get context() {
    return this.#context;
  }

  set context(context) {
    this.#context = context;
    this.#draw();
  }

  get #input() {
    return /** @type {HTMLInputElement} */ (this.querySelector("input"));
  }

  #draw() {
    if (!this.isConnected) return;
    const options = this.#isOpen ? this.#options() : [];
    this.#at = Math.min(this.#at, Math.max(0, options.length - 1));
    const isShown = this.#isOpen && (options.length > 0 || this.#error !== "");
    const selected = options[this.#at];
    this.#showPreviewOf(selected);
    render(
      this,
      icon("search"),
      h("input", {
        type: "text",
        id: "search",
        role: "combobox",
        "aria-label": t("Find anything"),
        "aria-expanded": String(isShown),
        "aria-controls": "finder-options",
        "aria-autocomplete": "list",
        "aria-activedescendant": isShown && options.length > 0 ? `finder-${this.#at}` : null,
        "aria-describedby": selected?.preview ? "finder-preview" : null,
        placeholder: t("Find anything"),
        autocomplete: "off",
        spellcheck: "false",
        maxlength: 1000,
        oninput: () => this.#onInput(),
        onfocus: () => this.#open(),
        onblur: () => this.#close(),
        onkeydown: (/** @type {KeyboardEvent} */ event) => this.#onKey(event, options),
      }),
      h("kbd", { "aria-hidden": "true" }, "/"),
      h(
        "div",
        {
          class: "finder",
          hidden: !isShown,
          // Otherwise Tab goes to what scrolls.
          tabindex: "-1",
          // A press must not take the focus from the box, which would close the list before the click.
          onpointerdown: (/** @type {Event} */ event) => event.preventDefault(),
        },
        h(
          "ul",
          { id: "finder-options", role: "listbox", "aria-label": t("Found") },
          options.map((option, at) =>
            h(
              "li",
              {
                key: at,
                id: `finder-${at}`,
                role: "option",
                "aria-selected": String(at === this.#at),
                // The first click on a verb shows its preview.
                onclick: () => (option.preview && at !== this.#at ? this.#select(at) : this.#choose(option)),
              },
              h("span", { class: "finder-kind" }, word(option.kind)),
              h("span", { class: "one-line" }, h("b", null, option.name), option.detail && h("span", { class: "faint" }, ` ${option.detail}`)),
            ),
          ),
        ),
        this.#error && h("p", { class: "bad-text" }, this.#error),
        h("div", { class: "finder-preview", id: "finder-preview", role: "status", hidden: !selected?.preview }, this.#previewContent()),
        h("p", { class: "finder-hint" }, t("Filters: task:sync state:failed key:\"acme corp\"")),
      ),
    );
  }

  #previewContent() {
    const { text, command, error, isReady } = this.#preview;
    if (error) return h("p", { class: "bad-text" }, error);
    if (!isReady) return h("p", null, t("Counting …"));
    return [
      h("p", null, text),
      commandLine(command),
      h("p", null, t("Press Enter, or click again, to do it.")),
    ];
  }

  /** Load the preview of an option, unless it is the one that is shown. @param {Option | undefined} option */
  #showPreviewOf(option) {
    const of = option?.preview ? previewName(this.#text, option) : "";
    if (of === this.#preview.of) return;
    this.#preview = { ...NO_PREVIEW, of };
    option?.preview?.().then(
      (preview) => this.#onPreview(of, { ...preview, error: "", isReady: true }),
      (error) => this.#onPreview(of, { text: "", command: "", error: messageOf(error), isReady: false }),
    );
  }

  /** @param {string} of @param {Omit<Preview, "of">} preview */
  #onPreview(of, preview) {
    // Another option may be selected by now.
    if (of !== this.#preview.of) return;
    this.#preview = { of, ...preview };
    this.#draw();
  }

  /** @param {number} at */
  #select(at) {
    this.#at = at;
    this.#draw();
  }

  #open() {
    this.#isOpen = true;
    this.#at = 0;
    this.#draw();
  }

  #close() {
    this.#isOpen = false;
    clearTimeout(this.#timer);
    this.#request.abort();
    this.#draw();
  }

  #onInput() {
    this.#text = this.#input.value;
    this.#at = 0;
    this.#isOpen = true;
    this.#error = "";
    clearTimeout(this.#timer);
    this.#request.abort();
    const question = questionOf(this.#text);
    if (question === null) this.#found = { question: "", items: [] };
    else this.#timer = window.setTimeout(() => void this.#ask(question), DELAY);
    this.#draw();
  }

  /** @param {{q: string, kind?: string}} question */
  async #ask(question) {
    const request = (this.#request = new AbortController());
    try {
      const { items } = await get("find", question, request.signal);
      this.#found = { question: JSON.stringify(question), items };
    } catch (error) {
      if (request.signal.aborted) return;
      this.#error = messageOf(error);
    }
    this.#draw();
  }

  /** @param {KeyboardEvent} event @param {Option[]} options */
  #onKey(event, options) {
    const count = options.length;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (!this.#isOpen) this.#open();
      else if (count > 0) this.#at = (this.#at + (event.key === "ArrowDown" ? 1 : count - 1)) % count;
      this.#draw();
      this.querySelector(`#finder-${this.#at}`)?.scrollIntoView({ block: "nearest" });
    } else if (event.key === "Enter") {
      if (this.#isOpen && options[this.#at]) this.#choose(options[this.#at]);
    } else if (event.key === "Escape") {
      if (this.#text) this.#write("");
      else this.#input.blur();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {Option} option */
  #choose(option) {
    if (option.complete !== undefined) {
      this.#write(option.complete);
      return;
    }
    if (option.preview && !(this.#preview.isReady && this.#preview.of === previewName(this.#text, option))) return;
    const act = option.act ?? (option.preview && this.#preview.act);
    this.#write("");
    this.#input.blur();
    if (option.href !== undefined) go(option.href);
    else act?.();
  }

  /** Put a text into the box. @param {string} text */
  #write(text) {
    this.#input.value = text;
    this.#onInput();
  }

  /** @returns {Option[]} */
  #options() {
    const text = this.#text.trim();
    const { pages, actions } = this.#context;
    if (!text)
      return [
        ...recentObjects().map(optionOf),
        ...pages.map(({ name, href }) => ({ kind: "page", name, href })),
        ...actions.map(actionOption),
      ];
    const words = wordsOf(this.#text);
    const { filters, rest, unknown } = sorted(words);
    const known = JSON.stringify(questionOf(this.#text)) === this.#found.question ? recentFirst(this.#found.items) : [];
    const typed = parseVerb(this.#text);
    if (typed) return this.#verbOptions(typed, words, known);
    const completions = this.#completions(words, known);
    const jobs = Object.keys(filters).length > 0 && !unknown.length ? [this.#jobs(filters, rest)] : [];
    if (Object.keys(filters).length || unknown.length)
      return isOpenWord(words) && !isValue(words, known) ? [...completions, ...jobs] : [...jobs, ...completions];
    const named = (/** @type {{name: string}} */ { name }) => name.toLowerCase().includes(text.toLowerCase());
    return [
      ...(JOB_ID.test(text) && !known.some((each) => each.kind === "job") ? [{ kind: "job", name: text, href: address(["jobs", text]) }] : []),
      ...pages.filter(named).map(({ name, href }) => ({ kind: "page", name, href })),
      ...known.flatMap((each) => [optionOf(each), ...this.#actionsOn(each, known)]),
      ...actions.filter(named).map(actionOption),
      ...completions,
      this.#jobs({}, text),
    ];
  }

  /** What a typed verb does, then what the same text finds. @param {import("./verbs.js").TypedVerb} typed @param {Word[]} words @param {any[]} known @returns {Option[]} */
  #verbOptions(typed, words, known) {
    const text = this.#text.trim().toLowerCase();
    const { filters, rest, unknown } = sorted(wordsOf(typed.object));
    const ofJobs = unknown.length ? {} : { ...filters, ...(rest ? { error: rest } : {}) };
    const objects = words.at(-1)?.name ? [] : known;
    const completions = words.at(-1)?.name ? this.#completions(words, known) : [];
    const actions = [
      ...this.#context.verbActions(typed, objects, ofJobs).map((action) => ({ kind: "action", ...action })),
      ...this.#context.actions.filter(({ name }) => name.toLowerCase().includes(text)).map(actionOption),
    ];
    const question = questionOf(this.#text);
    const isAnswered = question === null || JSON.stringify(question) === this.#found.question;
    const none = actions.length || completions.length ? [] : [nothingFor(typed, isAnswered)];
    return [...completions, ...actions, ...none, ...objects.map(optionOf), this.#jobs({}, this.#text.trim())];
  }

  /** What can be done with the best match of its kind. @param {any} found @param {any[]} known @returns {Option[]} */
  #actionsOn(found, known) {
    const isFirst = known.find((each) => each.kind === found.kind) === found;
    return isFirst ? this.#context.actionsOn(found).map(actionOption) : [];
  }

  /** The list of jobs with these filters and this text. @param {Record<string, string>} filters @param {string} rest @returns {Option} */
  #jobs(filters, rest) {
    /** @type {Record<string, string>} */
    const query = { ...filters };
    if (rest && this.#context.canSearchText) query.text ??= rest.slice(0, LONGEST);
    else if (rest) query.task ??= rest.slice(0, LONGEST);
    const said = Object.entries(query).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`);
    return { kind: "jobs", name: t("Show jobs"), detail: said.join(", "), href: address(["jobs"], query) };
  }

  /** What the last word may become: a filter, or the value of one. @param {Word[]} words @param {any[]} known @returns {Option[]} */
  #completions(words, known) {
    const last = words.at(-1);
    if (!last || last.isClosed) return [];
    const before = this.#text.slice(0, this.#text.length - lengthOf(last));
    if (!last.name) {
      const names = filterNames().filter((name) => name.startsWith(last.value.toLowerCase()));
      const verbs = words.length > 1 ? [] : VERBS.filter((verb) => verb.startsWith(last.value.toLowerCase()));
      return [
        ...verbs.map((verb) => ({ kind: "action", name: `${verb} …`, complete: `${verb} ` })),
        ...names.map((name) => ({ kind: "filter", name: `${name}:`, complete: `${before}${name}:` })),
      ];
    }
    return valuesOf(last.name, known)
      .filter((value) => value !== last.value && value.toLowerCase().includes(last.value.toLowerCase()))
      .map((value) => ({ kind: "filter", name: `${last.name}:${value}`, complete: `${before}${last.name}:${quoted(value)} ` }));
  }
}

customElements.define("hg-finder", FinderElement);

/** What the API is asked for a text: names, or the values of the filter at its end; null for nothing. @param {string} text @returns {{q: string, kind?: string} | null} */
function questionOf(text) {
  const words = wordsOf(text);
  const last = words.at(-1);
  if (!last) return null;
  if (last.name) {
    if (last.isClosed || !NAMED.includes(last.name) || last.value.length > LONGEST) return null;
    return { q: last.value, kind: last.name };
  }
  const typed = parseVerb(text);
  if (typed) return typed.object.length > LONGEST ? null : { q: typed.object };
  const { filters, rest, unknown } = sorted(words);
  return Object.keys(filters).length || unknown.length || rest.length > LONGEST ? null : { q: rest };
}

/** The words of a text. A word has a name only if the text has a filter: keys and addresses have colons, too. @param {string} text @returns {Word[]} */
function wordsOf(text) {
  const found = [...text.matchAll(WORDS)];
  const hasFilter = found.some(([, name]) => filterNames().includes(name?.toLowerCase()));
  return found.map(([all, name, inQuotes, endQuote, bare, , space]) =>
    hasFilter && name !== undefined
      ? { name: name.toLowerCase(), value: inQuotes ?? bare, isClosed: endQuote === '"' || space !== "" }
      : { name: "", value: all.trimEnd(), isClosed: space !== "" },
  );
}

/** The filters of a text, the names that are none, and the other words. @param {Word[]} words */
function sorted(words) {
  const names = filterNames();
  const filters = words.filter(({ name, value }) => names.includes(name) && value !== "");
  return {
    filters: Object.fromEntries(filters.map(({ name, value }) => [name, value])),
    unknown: words.filter(({ name }) => name !== "" && !names.includes(name)).map(({ name }) => name),
    rest: words
      .filter(({ name }) => name === "")
      .map(({ value }) => value)
      .join(" "),
  };
}

/** @param {Word[]} words */
function isOpenWord(words) {
  return words.at(-1)?.isClosed === false;
}

/** Whether the last word is a filter with a value that there is. @param {Word[]} words @param {any[]} known */
function isValue(words, known) {
  const last = words.at(-1);
  return last !== undefined && valuesOf(last.name, known).includes(last.value);
}

/** The values of a filter: its own, or those that the API has found. @param {string} name @param {any[]} known @returns {string[]} */
function valuesOf(name, known) {
  // Not what all objects have: a word may be named `constructor`.
  return Object.hasOwn(VALUES, name) ? VALUES[name] : NAMED.includes(name) ? known.map(valueOf) : [];
}

/** How many characters a word at the end of a text has. @param {Word} word */
function lengthOf({ name, value }) {
  return value.length + (name ? name.length + 1 : 0);
}

/** @param {string} value */
function quoted(value) {
  return /\s/.test(value) ? `"${value}"` : value;
}

/** The value that a filter takes for something found. @param {any} found */
function valueOf({ kind, name, detail }) {
  return kind === "node" ? detail : name;
}

/** The option for a verb without an object. @param {import("./verbs.js").TypedVerb} typed @param {boolean} isAnswered whether the API has nothing more to say @returns {Option} */
function nothingFor({ verb, object }, isAnswered) {
  const preview = isAnswered
    ? () => Promise.reject(new Error(t("Nothing that begins so can be changed with “{verb}”: {name}", { verb, name: object })))
    : () => new Promise(() => {});
  return { kind: "action", name: `${verb} ${object}`, detail: isAnswered ? null : "…", preview };
}

/** What identifies a preview. @param {string} text @param {Option} option */
function previewName(text, { name, detail }) {
  return [text.trim(), name, detail].join(" ");
}

/** @param {Action} action @returns {Option} */
function actionOption({ name, act }) {
  return { kind: "action", name, act };
}

/** @param {any} found @returns {Option} */
function optionOf({ kind, name, limit, detail }) {
  const places = /** @type {Record<string, string>} */ ({
    job: address(["jobs", name]),
    batch: address(["batches", name]),
    task: address(["tasks", name]),
    queue: address(["queues", name]),
    limit: address(["limits", name]),
    key: limit === null ? "" : bucketHref(limit, name),
    schedule: address(["schedules", name]),
    node: "nodes",
  });
  return { kind, name: kind === "key" ? format.keyName(name) : name, detail: limit ?? detail, href: places[kind] };
}
