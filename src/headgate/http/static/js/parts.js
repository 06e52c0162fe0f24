/** The components of pages: badges, gauges, ticking times, buttons, panels, empty states. */

import { command, commandHint } from "./commands.js";
import { classes, h } from "./dom.js";
import * as format from "./format.js";
import { icon } from "./icons.js";
import { t, withElements, word } from "./language.js";
import { address } from "./router.js";
import { visible } from "./text.js";
import { toast } from "./toasts.js";

/** @typedef {import("./dom.js").Children} Children */

/** A state with its icon, label and colour. @param {string} state @param {string} [label] */
export function badge(state, label = word(state)) {
  return h("span", { class: `badge state-${state}` }, icon(state), label);
}

/** The state of a job; for a waiting job, what it waits for. @param {any} job */
export function jobState(job) {
  if (job.state !== "waiting") return job.state;
  if (job.view) return job.view;
  if (job.is_blocked) return "blocked";
  if (job.is_scheduled) return "scheduled";
  return job.waits_for ? "throttled" : "ready";
}

/** A ticking relative time, "12 s ago" or "in 4 min"; the title has the full time. @param {string | null | undefined} at @param {string} [none] */
export function when(at, none = "–") {
  return at ? h("hg-time", { at, mode: "relative" }) : h("span", { class: "faint" }, none);
}

/** A countdown to a time; `due` once it has passed. @param {string | null | undefined} at @param {string} [none] @param {string} [due] */
export function countdown(at, none = "–", due = t("now")) {
  return at ? h("hg-time", { at, due, mode: "countdown" }) : h("span", { class: "faint" }, none);
}

/** A time of day. @param {string | null | undefined} at */
export function clock(at) {
  return at ? h("hg-time", { at, mode: "clock" }) : h("span", { class: "faint" }, "–");
}

/** The ticking time since an instant. @param {string} since */
export function elapsed(since) {
  return h("hg-time", { at: since, mode: "elapsed" });
}

/** A time of day, and how long ago that is. @param {string} at */
export function moment(at) {
  return [h("span", { class: "num" }, clock(at)), h("span", { class: "faint" }, " · ", when(at))];
}

/** A link into the dashboard. @param {string} href @param {...Children} children */
export function link(href, ...children) {
  return h("a", { href }, children);
}

/** @param {string} id @param {boolean} [isWhole] */
export function jobLink(id, isWhole = false) {
  return h("a", { href: address(["jobs", id]), class: "mono", title: id }, isWhole ? id : format.shortId(id));
}

/** A name that may wrap after punctuation. @param {string} name */
export function breakable(name) {
  return name.split(/(?<=[:_./-])/).map((part, at) => [at > 0 && h("wbr", { key: at }), part]);
}

/** Links to the pages of tasks or limits. @param {string} page @param {string[]} names @param {string} [none] */
export function nameLinks(page, names, none = "–") {
  if (!names.length) return h("span", { class: "faint" }, none);
  return names.map((name, at) => [at > 0 && ", ", h("a", { key: name, href: address([page, name]) }, breakable(name))]);
}

/** @param {string} limit @param {string} key */
export function bucketHref(limit, key) {
  return `${address(["limits", limit])}?${new URLSearchParams({ key })}`;
}

/** @param {string} limit @param {string} key @param {"clamp" | "one-line"} [size] of a long key */
export function bucketLink(limit, key, size = "clamp") {
  return h(
    "a",
    { href: bucketHref(limit, key), class: "bucket-name" },
    h("b", { class: size, title: key }, format.keyName(key)),
    " ",
    h("span", { class: "faint" }, limit),
  );
}

/**
 * How much of a limit is used: one block per start or permit for small limits, otherwise a bar.
 *
 * @param {{used: number | null, allowed: number | null, label: string, state?: string, isLarge?: boolean}} budget
 */
export function gauge({ used, allowed, label, state = "", isLarge = false }) {
  if (used === null || used === undefined || !allowed) {
    const said = used === null || used === undefined ? t("unknown") : t("{used} used", { used: format.count(used) });
    return h("span", { class: "gauge-unknown faint" }, said);
  }
  const share = Math.min(1, used / allowed);
  const level = state || (share >= 1 ? "full" : share >= 0.8 ? "high" : "fine");
  const isBlocks = allowed <= (isLarge ? 40 : 12);
  return h(
    "span",
    { class: classes("gauge", `gauge-${level}`, isLarge && "gauge-large") },
    h(
      "span",
      {
        class: "gauge-track",
        role: "meter",
        "aria-label": label,
        "aria-valuemin": "0",
        "aria-valuemax": allowed,
        "aria-valuenow": Math.min(used, allowed),
        "aria-valuetext": t("{used} of {allowed} used", { used, allowed }),
      },
      isBlocks
        ? Array.from({ length: allowed }, (_, at) => h("span", { class: at < used ? "block used" : "block" }))
        : h("span", { class: "fill", style: { width: `${100 * share}%` } }),
    ),
    h("span", { class: "gauge-text num" }, h("b", null, format.count(used)), ` / ${format.count(allowed)}`),
  );
}

/** How much a bucket allows; null if unknown. @param {any} bucket @returns {number | null} */
export function allowed(bucket) {
  // The most that a rate with a burst allows at once is the burst, not its count per period.
  const burst = / burst (\d+)/.exec(bucket.rule ?? "");
  if (burst) return Number(burst[1]);
  if (bucket.count) return bucket.count;
  return typeof bucket.used === "number" && typeof bucket.available === "number"
    ? bucket.used + bucket.available
    : null;
}

/** Whether nothing starts on a key for some time yet. @param {any} bucket or a key in the overview */
export function isPenalized(bucket) {
  return bucket.penalized_until !== null && Date.parse(bucket.penalized_until) > format.now();
}

/** Badges of a bucket: paused, penalized, or with a rule that was set at run time. @param {any} bucket */
export function bucketBadges(bucket) {
  return [
    bucket.is_paused && badge("paused"),
    isPenalized(bucket) &&
      h(
        "span",
        { class: "badge state-penalized" },
        icon("penalized"),
        withElements("penalized, {time}", { time: h("hg-time", { at: bucket.penalized_until, due: t("over"), mode: "left" }) }),
      ),
    bucket.is_set &&
      h("span", { class: "badge state-set", title: t("A rule set at run time replaces the declared one") }, t("overridden")),
  ];
}

/** A line with a command. @param {string} text */
export function commandLine(text) {
  return h("p", { class: "command-line" }, h("code", null, text));
}

/** What a question says: the effect of an action, and its command. @param {Children} text @param {string} command */
export function effect(text, command) {
  return [h("p", null, text), commandLine(command)];
}

/** A button that copies a command. @param {string} text @param {string} [label] */
export function copyCommand(text, label = t("Copy as command")) {
  const onclick = () => copy(text, t("The command"));
  return h("button", { type: "button", class: "copy", title: text, onclick }, icon("terminal"), h("span", null, label));
}

/** @param {string} text @param {string} what the object of "Copy": "the id" */
export function copyButton(text, what) {
  const title = t("Copy {what}", { what });
  const onclick = () => copy(text, what);
  return h("button", { type: "button", class: "quiet small", "aria-label": title, title, onclick }, icon("copy"));
}

/** @param {string} text @param {string} what */
async function copy(text, what) {
  const name = what.charAt(0).toUpperCase() + what.slice(1);
  try {
    await (navigator.clipboard ? navigator.clipboard.writeText(visible(text)) : copySelected(visible(text)));
    const shown = text.length > 80 ? `${text.slice(0, 80)}…` : text;
    toast(t("{name} was copied: {text}", { name, text: shown }) + commandHint(text), "plain");
  } catch {
    toast(t("{name} could not be copied: {text}", { name, text }), "bad");
  }
}

/** Copy what is selected in a field: on plain HTTP, browsers offer no clipboard. @param {string} text */
function copySelected(text) {
  const focused = /** @type {HTMLElement | null} */ (document.activeElement);
  const field = Object.assign(document.createElement("textarea"), { value: text });
  (focused?.closest("dialog") ?? document.body).append(field);
  field.focus({ preventScroll: true });
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  focused?.focus({ preventScroll: true });
  if (!isCopied) throw new Error();
}

/** A section of a page with a title. @param {string} title @param {{aside?: Children, class?: string, key?: string, hint?: string | null}} options @param {...Children} children */
export function panel(title, options, ...children) {
  const id = panelId(title);
  return h(
    "section",
    { class: classes("panel", options.class), "aria-labelledby": id, key: options.key ?? title },
    h(
      "header",
      { class: "panel-head" },
      h("h2", { id }, title),
      options.hint && h("p", { class: "hint" }, options.hint),
      options.aside && h("div", { class: "aside" }, options.aside),
    ),
    children,
  );
}

/** The id of the title of a section. @param {string} title */
export function panelId(title) {
  return `panel-${title.toLowerCase().replace(/\W+/g, "-")}`;
}

/** The empty state of a list: what it means, and what to do. @param {string} title @param {Children} body @param {string} [commandText] */
export function empty(title, body, commandText) {
  return h(
    "div",
    { class: "empty" },
    h("p", { class: "empty-title" }, title),
    h("p", null, body),
    commandText &&
      h("p", { class: "empty-command" }, h("code", null, commandText), copyButton(commandText, t("the command"))),
  );
}

/** The note that a frozen list has hidden updates. @param {import("./page.js").Context} context */
export function frozenNote(context) {
  return (
    context.hasHiddenUpdate && h("span", { class: "frozen-note", key: "frozen" }, icon("paused"), t("Updates paused while the list is in use"))
  );
}

/** A notice about something that needs attention. @param {"bad" | "warn" | "info"} kind @param {...Children} children */
export function notice(kind, ...children) {
  return h(
    "div",
    { class: `notice notice-${kind}` },
    icon(kind === "info" ? "info" : "warning"),
    h("div", null, children),
  );
}

/** The placeholder of a page that is loading. @param {number} [lines] */
export function skeleton(lines = 6) {
  return h(
    "div",
    { class: "skeleton", role: "status" },
    h("span", { class: "sr-only" }, t("Loading")),
    Array.from({ length: lines }, (_, at) =>
      h("span", { class: "skeleton-line", style: { width: `${90 - ((at * 17) % 40)}%` } }),
    ),
  );
}

/** A list of names and values; an item that is not there is left out. @param {([string, Children] | false | null | undefined | "" | 0)[]} items @param {string} [extra] */
export function facts(items, extra = "") {
  return h(
    "dl",
    { class: `facts ${extra}` },
    items.map((item) => (item ? h("div", { key: item[0] }, h("dt", null, item[0]), h("dd", null, item[1])) : null)),
  );
}

/** The title of a page. @param {Children} title @param {{crumbs?: [string, string][], badges?: Children, actions?: Children, below?: Children}} [options] */
export function heading(title, { crumbs = [], badges, actions, below } = {}) {
  return h(
    "header",
    { class: "page-head" },
    crumbs.length > 0 &&
      h(
        "nav",
        { class: "crumbs", "aria-label": t("Breadcrumb") },
        crumbs.map(([name, href], at) => [at > 0 && icon("chevron"), link(href, name)]),
      ),
    h(
      "div",
      { class: "page-title" },
      h("h1", { tabindex: "-1" }, title),
      badges,
      h("div", { class: "actions" }, actions),
    ),
    below,
  );
}

/** A button for an action. With `why` it is disabled, and shows that reason when pressed.
 *
 * @param {string} label
 * @param {{icon?: string, kind?: string, why?: string | null, title?: string, pressed?: boolean, name?: string}} options
 * @param {() => void} act
 */
export function button(label, options, act) {
  return h(
    "button",
    {
      type: "button",
      class: options.kind,
      "aria-disabled": options.why ? "true" : null,
      "aria-pressed": options.pressed === undefined ? null : String(options.pressed),
      "aria-label": options.name,
      title: options.why ?? options.title,
      onclick: () => (options.why ? toast(options.why, "plain") : act()),
    },
    options.icon && icon(options.icon),
    h("span", null, label),
  );
}

/** Tabs, each with its own address. @param {string} label @param {{name: Children, href: string, isCurrent: boolean, count?: number | null}[]} items */
export function tabs(label, items) {
  return h(
    "nav",
    { class: "tabs", "aria-label": label },
    items.map((item, at) =>
      h(
        "a",
        { key: at, href: item.href, "aria-current": item.isCurrent ? "page" : null },
        item.name,
        item.count !== undefined &&
          item.count !== null &&
          h("span", { class: "tab-count num" }, format.compact(item.count)),
      ),
    ),
  );
}

/** Tabs of time ranges, each with its own address. @template {{name: string}} Range @param {string} label @param {Record<string, Range>} ranges by their names in the address @param {Range} current @param {(name: string) => string} href */
export function rangeTabs(label, ranges, current, href) {
  return tabs(
    label,
    Object.entries(ranges).map(([name, each]) => ({ name: each.name, href: href(name), isCurrent: each === current })),
  );
}

/** The command that starts a worker. */
export function startWorker() {
  return command("worker");
}
