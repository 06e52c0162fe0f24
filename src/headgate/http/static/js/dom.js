/**
 * Elements as values, and the smallest change that makes a place on the page look like them.
 *
 * Text is only ever set as text: nothing that comes from a job, a limit or a name is read as markup. Characters that
 * would hide or turn what others wrote are shown escaped.
 */

import { visible } from "./text.js";

/**
 * @typedef {{tag: string, props: Record<string, any>, key: string | null, children: VNode[], el?: Node}} VElement
 * @typedef {{text: string, key: null, el?: Node}} VText
 * @typedef {VElement | VText} VNode
 * @typedef {VNode | string | number | null | undefined | false | true} Child
 * @typedef {Child | readonly any[]} Children
 */

/** Attributes that people read. */
const READ = new Set(["title", "aria-label", "placeholder", "alt"]);

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "path", "line", "rect", "circle", "polyline", "text"]);
const AS_PROPERTY = new Set(["value", "checked", "selected", "indeterminate", "disabled", "hidden", "open"]);

/**
 * An element. `key` tells it from its siblings, so that it stays the same element when they change.
 *
 * @param {string} tag
 * @param {Record<string, any> | null} [props]
 * @param {...Children} children
 * @returns {VElement}
 */
export function h(tag, props, ...children) {
  const { key = null, ...rest } = props ?? {};
  return { tag, props: rest, key: key === null ? null : String(key), children: nodes(children) };
}

/**
 * Make the children of `place` look like these, keeping the elements, the focus and what was typed.
 *
 * @param {Element} place
 * @param {...Children} children
 */
export function render(place, ...children) {
  const kept = /** @type {{shown?: VNode[]}} */ (/** @type {unknown} */ (place));
  const wanted = nodes(children);
  patchChildren(place, kept.shown ?? [], wanted);
  kept.shown = wanted;
}

/** Class names, of which some may be false. @param {...(string | false | null | undefined)} names */
export function classes(...names) {
  return names.filter(Boolean).join(" ");
}

/** @param {Children[]} children @returns {VNode[]} */
function nodes(children) {
  /** @type {VNode[]} */
  const found = [];
  for (const child of /** @type {Child[]} */ (children.flat(Infinity))) {
    if (child === null || child === undefined || child === false || child === true) continue;
    if (typeof child === "object") found.push(child);
    else found.push({ text: visible(String(child)), key: null });
  }
  return found;
}

/** @param {Element} parent @param {VNode[]} before @param {VNode[]} after */
function patchChildren(parent, before, after) {
  /** @type {Map<string, VNode[]>} */
  const old = new Map();
  for (const node of before) {
    const kind = kindOf(node);
    const found = old.get(kind);
    if (found) found.push(node);
    else old.set(kind, [node]);
  }
  const matched = after.map((node) => [node, old.get(kindOf(node))?.shift()]);
  for (const rest of old.values()) for (const node of rest) parent.removeChild(/** @type {Node} */ (node.el));
  let cursor = parent.firstChild;
  for (const [node, was] of /** @type {[VNode, VNode | undefined][]} */ (matched)) {
    const el = was === undefined ? create(node) : patch(was, node);
    if (el === cursor) cursor = cursor.nextSibling;
    else parent.insertBefore(el, cursor);
  }
}

/** Nodes of one kind can become each other. @param {VNode} node */
function kindOf(node) {
  return "text" in node ? "#" : node.key === null ? node.tag : `${node.tag} ${node.key}`;
}

/** @param {VNode} node @returns {Node} */
function create(node) {
  if ("text" in node) return (node.el = document.createTextNode(node.text));
  const el = SVG_TAGS.has(node.tag) ? document.createElementNS(SVG, node.tag) : document.createElement(node.tag);
  node.el = el;
  const { value, ...props } = node.props;
  for (const [name, wanted] of Object.entries(props)) setProp(el, name, wanted);
  patchChildren(el, [], node.children);
  // A select has its value only when it has its options.
  if (value !== undefined) setProp(el, "value", value);
  return el;
}

/** @param {VNode} was @param {VNode} node @returns {Node} */
function patch(was, node) {
  const el = /** @type {Node} */ (was.el);
  node.el = el;
  if ("text" in node) {
    if ("text" in was && was.text !== node.text) el.nodeValue = node.text;
    return el;
  }
  const before = /** @type {VElement} */ (was);
  const element = /** @type {Element} */ (el);
  for (const name of Object.keys(before.props)) if (!(name in node.props)) setProp(element, name, null);
  const { value, ...props } = node.props;
  for (const [name, wanted] of Object.entries(props)) {
    if (before.props[name] !== wanted) setProp(element, name, wanted);
  }
  patchChildren(element, before.children, node.children);
  if (value !== undefined && before.props.value !== value) setProp(element, "value", value);
  return el;
}

/** @param {any} el @param {string} name @param {any} value */
function setProp(el, name, value) {
  if (name.startsWith("on")) el[name] = value ?? null;
  else if (name === "style") for (const [key, set] of Object.entries(value ?? {})) el.style.setProperty(key, set);
  else if (AS_PROPERTY.has(name) && !(el instanceof SVGElement)) el[name] = value ?? (name === "value" ? "" : false);
  else if (el.localName.includes("-") && name in el) el[name] = value;
  else if (value === null || value === undefined || value === false) el.removeAttribute(name);
  else el.setAttribute(name, value === true ? "" : READ.has(name) ? visible(String(value)) : String(value));
}
