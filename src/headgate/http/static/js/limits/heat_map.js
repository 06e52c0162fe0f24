/** `<hg-heat-map>`: many keys of limits at a glance, each a link to its page, and the same keys as a table. */

import { classes, h, render } from "../dom.js";
import * as format from "../format.js";
import { icon } from "../icons.js";
import { t } from "../language.js";
import { allowed, bucketHref } from "../parts.js";
import { bucketTable, nextSlot } from "./buckets.js";

/** @typedef {"unused" | "used" | "high" | "waiting" | "closed"} Level */

/** What each level means, from the calmest one. @type {[Level, string][]} */
const LEVELS = [
  ["used", t("used")],
  ["high", t("80 % used")],
  ["waiting", t("jobs wait")],
  ["closed", t("paused or penalized")],
];
/** Up to how many keys have their name in the tile, with details or without. */
const MOST_LARGE = 24;
const MOST_NAMED = 120;
const MOST_IN_TABLE = 100;

class HeatMapElement extends HTMLElement {
  /** @type {any[]} */
  #keys = [];
  /** The key that Tab goes to, and whose details are shown. @type {string | null} */
  #current = null;
  #isTable = false;

  connectedCallback() {
    for (const kind of ["focusin", "pointerover"]) this.addEventListener(kind, this.#show);
    this.#draw();
  }

  get keys() {
    return this.#keys;
  }

  set keys(keys) {
    this.#keys = this.matches(":is(:hover, :focus-within)") ? inOrderOf(this.#keys, keys) : keys;
    this.#draw();
  }

  #draw() {
    if (!this.isConnected) return;
    render(this, this.#legend(), this.#isTable ? this.#table() : this.#tiles());
  }

  #legend() {
    return h(
      "div",
      { class: "heat-legend", key: "legend" },
      LEVELS.map(([level, text]) =>
        h("span", { key: level, class: "legend-item" }, h("span", { class: `swatch heat-${level}` }), text),
      ),
      h(
        "button",
        {
          type: "button",
          class: "quiet small push",
          title: this.#isTable ? t("Show as a map") : t("Show as a table"),
          onclick: () => this.#toggleTable(),
        },
        this.#isTable ? t("Map") : t("Table"),
      ),
    );
  }

  #toggleTable() {
    this.#isTable = !this.#isTable;
    this.#draw();
  }

  #table() {
    return h("div", { key: "table" }, bucketTable(this.#keys.slice(0, MOST_IN_TABLE), false, null));
  }

  #tiles() {
    const keys = this.#keys;
    const size = keys.length <= MOST_LARGE ? "large" : keys.length <= MOST_NAMED ? "named" : "small";
    const current = keys.find((each) => nameOf(each) === this.#current);
    const tabStop = nameOf(current ?? keys[0]);
    return [
      h(
        "ul",
        {
          class: `heat-map heat-${size}`,
          key: "map",
          "aria-label": t("Keys, the most affected first; arrow keys move the selection"),
          onkeydown: (/** @type {KeyboardEvent} */ event) => this.#onKey(event),
        },
        keys.map((bucket) => {
          const name = nameOf(bucket);
          return h("li", { key: name }, tile(bucket, size, name === tabStop));
        }),
      ),
      size !== "large" &&
        h("p", { class: "heat-detail", key: "detail", "aria-hidden": "true" }, current ? describe(current) : "\u00a0"),
    ];
  }

  /** Show the details of the tile that is pointed at or focused. @param {Event} event */
  #show = (event) => {
    const tile = event.target instanceof Element ? event.target.closest("a") : null;
    const name = tile?.dataset.name;
    if (name === undefined || name === this.#current) return;
    this.#current = name;
    this.#draw();
  };

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    const tiles = [...this.querySelectorAll("li")].filter((each) => each.offsetParent !== null);
    const at = tiles.findIndex((each) => each.contains(document.activeElement));
    const columns = tiles.filter((each) => each.offsetTop === tiles[0].offsetTop).length;
    const steps = /** @type {Record<string, number>} */ ({
      ArrowLeft: -1,
      ArrowRight: 1,
      ArrowUp: -columns,
      ArrowDown: columns,
      Home: -at,
      End: tiles.length - 1 - at,
    });
    if (at < 0 || !(event.key in steps) || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    tiles[at + steps[event.key]]?.querySelector("a")?.focus();
  }
}

customElements.define("hg-heat-map", HeatMapElement);

/** A map of keys, in this order. @param {any[]} keys */
export function heatMap(keys) {
  return h("hg-heat-map", { keys, class: "heat" });
}

/** @param {any} bucket @param {string} size @param {boolean} isTabStop */
function tile(bucket, size, isTabStop) {
  const level = levelOf(bucket);
  const share = Math.round(100 * usedShare(bucket));
  return h(
    "a",
    {
      class: classes("heat-tile", `heat-${level}`),
      href: bucketHref(bucket.limit, bucket.key),
      tabindex: isTabStop ? "0" : "-1",
      "data-name": nameOf(bucket),
      "aria-label": describe(bucket),
      title: describe(bucket),
      style: { "--share": `${share}%` },
    },
    level === "closed" && icon(bucket.is_paused ? "paused" : "penalized"),
    size === "small"
      ? bucket.waiting > 0 && format.compact(bucket.waiting)
      : h("b", { class: "one-line" }, format.keyName(bucket.key)),
    size === "named" && bucket.waiting > 0 && h("span", { class: "num" }, format.compact(bucket.waiting)),
    size === "large" && [
      h("span", { class: "one-line faint" }, bucket.limit),
      h(
        "span",
        { class: "one-line num" },
        bucket.waiting > 0
          ? [`${t("{count} waiting", { count: format.compact(bucket.waiting) })} · `, nextSlot(bucket)]
          : bucket.used === null
            ? t("use unknown")
            : t("{share} % used", { share }),
      ),
    ],
  );
}

/** @param {any} bucket @returns {Level} */
function levelOf(bucket) {
  if (bucket.is_paused || isPenalized(bucket)) return "closed";
  if (bucket.waiting > 0) return "waiting";
  const share = usedShare(bucket);
  return share >= 0.8 ? "high" : share > 0 ? "used" : "unused";
}

/** @param {any} bucket */
function usedShare(bucket) {
  const count = allowed(bucket);
  return bucket.used === null || !count ? 0 : Math.min(1, bucket.used / count);
}

/** @param {any} bucket */
function isPenalized(bucket) {
  return bucket.penalized_until !== null && Date.parse(bucket.penalized_until) > format.now();
}

/** A key in words. @param {any} bucket */
function describe(bucket) {
  const count = allowed(bucket);
  const used = bucket.used === null ? t("use unknown") : t("{used} of {count} used", { used: format.count(bucket.used), count: format.count(count) });
  const next = bucket.waiting > 0 && bucket.next_slot_at && !bucket.is_paused;
  return [
    `${format.keyName(bucket.key)}, ${bucket.limit}: ${used}`,
    format.plural(bucket.waiting, "job waiting", "jobs waiting"),
    next && t("next slot {time}", { time: format.relative(bucket.next_slot_at) }),
    bucket.is_paused && t("paused"),
    isPenalized(bucket) && t("penalized, ends {time}", { time: format.relative(bucket.penalized_until) }),
  ]
    .filter(Boolean)
    .join(", ");
}

/** @param {any} bucket */
function nameOf(bucket) {
  return `${bucket.limit} ${bucket.key}`;
}

/** The new keys in the order of the old ones, so that no tile moves under the pointer. @param {any[]} old @param {any[]} keys */
function inOrderOf(old, keys) {
  const places = new Map(old.map((each, at) => [nameOf(each), at]));
  return [...keys].sort((a, b) => (places.get(nameOf(a)) ?? Infinity) - (places.get(nameOf(b)) ?? Infinity) || 0);
}
