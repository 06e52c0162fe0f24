/**
 * A small virtual DOM: elements as values, and the smallest update that makes the document match them.
 *
 * Text is always set as text: names, keys and payloads are never parsed as markup. Characters that hide or reverse text
 * are shown escaped.
 */

import { visible } from "./text.js";

/**
 * @typedef {{tag: string, props: Record<string, any>, key: string | null, children: VNode[], el?: Node}} VElement
 * @typedef {{text: string, key: null, el?: Node}} VText
 * @typedef {VElement | VText} VNode
 * @typedef {VNode | string | number | null | undefined | false | true} Child
 * @typedef {Child | readonly any[]} Children
 */

/** Attributes that show text. */
const TEXT_ATTRIBUTES = new Set(["title", "aria-label", "placeholder", "alt"]);

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "path", "line", "rect", "circle", "polyline", "text", "title"]);
/** Set as properties of the element, not as attributes. */
const PROPERTIES = new Set(["value", "checked", "selected", "indeterminate", "disabled", "hidden", "open"]);

/**
 * An element. `key` identifies it among its siblings, so that it is reused when they change.
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
 * Update the children of `container` to these. Elements, focus and typed text are kept.
 *
 * @param {Element} container
 * @param {...Children} children
 */
export function render(container, ...children) {
  const holder = /** @type {{rendered?: VNode[]}} */ (/** @type {unknown} */ (container));
  const next = nodes(children);
  const focused = document.activeElement;
  patchChildren(container, holder.rendered ?? [], next);
  holder.rendered = next;
  // An element that was moved has lost it.
  if (focused instanceof HTMLElement && focused !== document.activeElement && focused.isConnected)
    focused.focus({ preventScroll: true });
}

/** Join class names; false ones are left out. @param {...(string | false | null | undefined)} names */
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

/** A node can be patched into another one of the same kind. @param {VNode} node */
function kindOf(node) {
  return "text" in node ? "#" : node.key === null ? node.tag : `${node.tag} ${node.key}`;
}

/** @param {VNode} node @returns {Node} */
function create(node) {
  if ("text" in node) return (node.el = document.createTextNode(node.text));
  const el = SVG_TAGS.has(node.tag) ? document.createElementNS(SVG, node.tag) : document.createElement(node.tag);
  node.el = el;
  const { value, ...props } = node.props;
  for (const [name, set] of Object.entries(props)) setProp(el, name, set);
  patchChildren(el, [], node.children);
  // A select takes its value only after its options exist.
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
  for (const [name, set] of Object.entries(props)) {
    if (before.props[name] !== set) setProp(element, name, set);
  }
  patchChildren(element, before.children, node.children);
  if (value !== undefined && before.props.value !== value) setProp(element, "value", value);
  return el;
}

/** @param {any} el @param {string} name @param {any} value */
function setProp(el, name, value) {
  // A field leaves out the space at its end; the next word may follow it.
  if (name === "value" && el.localName === "input" && el.value !== value && el.value.trim() === value) return;
  if (name.startsWith("on")) el[name] = value ?? null;
  else if (name === "style") for (const [key, set] of Object.entries(value ?? {})) el.style.setProperty(key, set);
  else if (PROPERTIES.has(name) && !(el instanceof SVGElement)) el[name] = value ?? (name === "value" ? "" : false);
  else if (el.localName.includes("-") && name in el) el[name] = value;
  else if (value === null || value === undefined || value === false) el.removeAttribute(name);
  else el.setAttribute(name, value === true ? "" : TEXT_ATTRIBUTES.has(name) ? visible(String(value)) : String(value));
}
