/** Short messages about the results of actions; screen readers announce them. */

import { h, render } from "./dom.js";
import { icon } from "./icons.js";

/** @typedef {{id: number, kind: "good" | "bad" | "plain", text: string}} Toast */

/** Milliseconds. */
const DURATION = 5_000;
const ERROR_DURATION = 12_000;

/** @type {Toast[]} */
let toasts = [];
let lastId = 0;

const container = document.createElement("div");
container.className = "toasts";
container.setAttribute("role", "status");
container.setAttribute("aria-live", "polite");
container.setAttribute("aria-label", "Messages");

/** The element that shows the messages. */
export function toastContainer() {
  return container;
}

/** Show a message that stays, and can be updated, until it is ended. @param {string} text */
export function progressToast(text) {
  lastId += 1;
  const id = lastId;
  toasts = [...toasts, { id, kind: /** @type {const} */ ("plain"), text }];
  show();
  return {
    /** @param {string} text */
    update(text) {
      toasts = toasts.map((each) => (each.id === id ? { ...each, text } : each));
      show();
    },
    end: () => dismiss(id),
  };
}

/** @param {string} text @param {Toast["kind"]} [kind] */
export function toast(text, kind = "good") {
  lastId += 1;
  const id = lastId;
  toasts = [...toasts, { id, kind, text }].slice(-4);
  show();
  setTimeout(() => dismiss(id), kind === "bad" ? ERROR_DURATION : DURATION);
}

/** @param {number} id */
function dismiss(id) {
  toasts = toasts.filter((each) => each.id !== id);
  show();
}

function show() {
  render(
    container,
    toasts.map((each) =>
      h(
        "div",
        { key: each.id, class: `toast toast-${each.kind}` },
        icon(each.kind === "good" ? "succeeded" : each.kind === "bad" ? "failed" : "info"),
        h("p", null, each.text),
        h(
          "button",
          { type: "button", class: "quiet", "aria-label": "Dismiss", onclick: () => dismiss(each.id) },
          icon("close"),
        ),
      ),
    ),
  );
}
