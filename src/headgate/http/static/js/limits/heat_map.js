/** `<hg-heat-map>`: the keys of one limit that jobs wait for, as blocks: the area by waiting jobs, the colour by when they are done. */

import { classes, h, render } from "../dom.js";
import * as format from "../format.js";
import { icon } from "../icons.js";
import { t } from "../language.js";
import { bucketHref, isPenalized } from "../parts.js";
import { address } from "../router.js";

/** @typedef {"soon" | "minutes" | "hour" | "long" | "closed" | "unknown"} Level */
/** @typedef {{x: number, y: number, width: number, height: number}} Rectangle */

/** What each level means. @type {[Level, string][]} */
const LEVELS = [
  ["soon", t("clear within 1 min")],
  ["minutes", t("within 15 min")],
  ["hour", t("within 1 h")],
  ["long", t("later")],
  ["closed", t("paused or penalized")],
  ["unknown", t("not predictable")],
];
const HEIGHT = 168;
/** A narrow map shows fewer keys by name. Pixels, and how many keys. */
const NARROW = 480;
const NAMED_IF_NARROW = 6;
/** The smallest share of the area that a block has, and the largest of the block of all other keys. */
const LEAST = 0.02;
const MOST_OF_REST = 0.35;

class HeatMapElement extends HTMLElement {
  /** @type {any} */
  #limit = null;
  /** The key that Tab goes to. @type {string | null} */
  #current = null;
  #width = 0;
  #observer = new ResizeObserver(() => this.clientWidth !== this.#width && this.#draw());

  connectedCallback() {
    this.addEventListener("focusin", this.#onFocus);
    this.#observer.observe(this);
    this.#draw();
  }

  disconnectedCallback() {
    this.#observer.disconnect();
  }

  get limit() {
    return this.#limit;
  }

  set limit(limit) {
    this.#limit = limit;
    this.#draw();
  }

  #draw() {
    if (!this.isConnected || !this.#limit) return;
    const limit = this.#limit;
    const width = (this.#width = this.clientWidth) || 600;
    const named = width < NARROW ? limit.worst.slice(0, NAMED_IF_NARROW) : limit.worst;
    const blocks = blocksOf(limit, named);
    const places = squarified(shares(blocks), { x: 0, y: 0, width, height: HEIGHT });
    const stop = blocks.some((each) => each.name === this.#current) ? this.#current : blocks[0]?.name;
    render(
      this,
      h(
        "ul",
        {
          class: "heat-map",
          key: "map",
          style: { height: `${HEIGHT}px` },
          "aria-label": t("Keys of {limit}, most waiting jobs first; arrow keys move the selection", { limit: limit.limit }),
          onkeydown: (/** @type {KeyboardEvent} */ event) => this.#onKey(event),
        },
        blocks.map((each, at) => block(each, places[at], each.name === stop)),
      ),
    );
  }

  /** @param {Event} event */
  #onFocus = (event) => {
    const name = event.target instanceof HTMLElement ? event.target.dataset.name : undefined;
    if (name === undefined || name === this.#current) return;
    this.#current = name;
    this.#draw();
  };

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    const links = [...this.querySelectorAll("a")];
    const at = links.findIndex((each) => each === document.activeElement);
    const steps = /** @type {Record<string, number>} */ ({
      ArrowLeft: -1,
      ArrowUp: -1,
      ArrowRight: 1,
      ArrowDown: 1,
      Home: -at,
      End: links.length - 1 - at,
    });
    if (at < 0 || !(event.key in steps) || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    links[at + steps[event.key]]?.focus();
  }
}

customElements.define("hg-heat-map", HeatMapElement);

/** The blocks of a limit that jobs wait for. @param {any} limit as in the overview */
export function heatMap(limit) {
  return h("hg-heat-map", { limit, class: "heat" });
}

/** What the colours of all maps mean. */
export function heatLegend() {
  return h(
    "p",
    { class: "heat-legend", key: "legend" },
    LEVELS.map(([level, text]) =>
      h("span", { key: level, class: "legend-item" }, h("span", { class: `swatch heat-${level}` }), text),
    ),
  );
}

/** @param {any} limit @param {any[]} named the keys that have a block of their own */
function blocksOf(limit, named) {
  const blocks = named.map((/** @type {any} */ key) => ({
    name: `=${key.key}`,
    title: format.keyName(key.key),
    waiting: key.waiting,
    level: levelOf(key),
    mark: key.is_paused ? "paused" : isPenalized(key) ? "penalized" : null,
    when: whenClear(key),
    whenInShort: key.is_paused || !key.clears_at ? whenClear(key) : format.clock(key.clears_at),
    href: bucketHref(limit.limit, key.key),
  }));
  const others = limit.keys - named.length;
  if (others > 0)
    blocks.push({
      name: "others",
      title: t("+{count} keys", { count: format.compact(others) }),
      waiting: limit.waiting - named.reduce((sum, key) => sum + key.waiting, 0),
      level: "unknown",
      mark: null,
      when: "",
      whenInShort: "",
      href: address(["limits"], { limit: limit.limit }),
    });
  return blocks;
}

/** @param {any} each @param {Rectangle} place @param {boolean} isTabStop */
function block(each, place, isTabStop) {
  const isWide = place.width >= 44 && place.height >= 20;
  const jobs = format.plural(each.waiting, "job waiting", "jobs waiting");
  const label = [each.title, jobs, each.when].filter(Boolean).join(", ");
  return h(
    "li",
    {
      key: each.name,
      style: {
        left: `${place.x}px`,
        top: `${place.y}px`,
        width: `${place.width}px`,
        height: `${place.height}px`,
      },
    },
    h(
      "a",
      {
        class: classes("heat-block", each.name === "others" ? "heat-others" : `heat-${each.level}`),
        href: each.href,
        tabindex: isTabStop ? "0" : "-1",
        "data-name": each.name,
        "aria-label": label,
        title: label,
      },
      isWide && [
        h("b", { class: "one-line" }, each.mark && icon(each.mark), each.title),
        place.height >= 40 && h("span", { class: "one-line num" }, place.width >= 130 ? jobs : format.compact(each.waiting)),
        place.height >= 60 && each.when && h("span", { class: "one-line" }, place.width >= 130 ? each.when : each.whenInShort),
      ],
    ),
  );
}

/** @param {any} key @returns {Level} */
function levelOf(key) {
  if (key.is_paused || isPenalized(key)) return "closed";
  if (!key.clears_at) return "unknown";
  const minutes = (Date.parse(key.clears_at) - format.now()) / 60_000;
  return minutes <= 1 ? "soon" : minutes <= 15 ? "minutes" : minutes <= 60 ? "hour" : "long";
}

/** @param {any} key */
function whenClear(key) {
  if (key.is_paused) return t("paused");
  if (key.clears_at) return t("clear at {time}", { time: format.clock(key.clears_at) });
  return isPenalized(key) ? t("penalized, ends {time}", { time: format.relative(key.penalized_until) }) : "";
}

/** The share of each block, largest first: by its jobs, but none too small to be seen. @param {any[]} blocks */
function shares(blocks) {
  const others = blocks.at(-1)?.name === "others" ? blocks.at(-1).waiting : 0;
  const jobs = blocks.reduce((sum, each) => sum + each.waiting, 0) || 1;
  const ofOthers = Math.min(others / jobs, MOST_OF_REST);
  const named = jobs - others || 1;
  const sizes = blocks.map((each) =>
    Math.max(LEAST, each.name === "others" ? ofOthers : (each.waiting / named) * (1 - ofOthers)),
  );
  const sum = sizes.reduce((all, each) => all + each, 0);
  return sizes.map((each) => each / sum);
}

/** Rectangles with these shares of an area, each as near to a square as rows of them allow. @param {number[]} parts @param {Rectangle} area @returns {Rectangle[]} */
function squarified(parts, area) {
  /** @type {Rectangle[]} */
  const found = [];
  let { x, y, width, height } = area;
  let rest = [...parts];
  while (rest.length) {
    const scale = (width * height) / rest.reduce((sum, each) => sum + each, 0);
    const side = Math.min(width, height);
    let count = 1;
    while (count < rest.length && worstRatio(rest.slice(0, count + 1), scale, side) <= worstRatio(rest.slice(0, count), scale, side))
      count += 1;
    const row = rest.slice(0, count);
    const depth = (row.reduce((sum, each) => sum + each, 0) * scale) / side;
    let along = 0;
    for (const part of row) {
      const length = (part * scale) / depth;
      found.push(
        width >= height
          ? { x, y: y + along, width: depth, height: length }
          : { x: x + along, y, width: length, height: depth },
      );
      along += length;
    }
    if (width >= height) [x, width] = [x + depth, width - depth];
    else [y, height] = [y + depth, height - depth];
    rest = rest.slice(count);
  }
  return found;
}

/** @param {number[]} row @param {number} scale @param {number} side */
function worstRatio(row, scale, side) {
  const depth = (row.reduce((sum, each) => sum + each, 0) * scale) / side;
  return Math.max(...row.map((part) => Math.max((part * scale) / depth / depth, (depth * depth) / (part * scale))));
}
