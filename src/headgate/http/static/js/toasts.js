/** Short messages about what was done; a screen reader is told them too. */

import { h, render } from "./dom.js";
import { icon } from "./icons.js";

/** @typedef {{id: number, kind: "good" | "bad" | "plain", text: string}} Toast */

const LASTS = 5_000;
const BAD_LASTS = 12_000;

/** @type {Toast[]} */
let toasts = [];
let last = 0;

const place = document.createElement("div");
place.className = "toasts";
place.setAttribute("role", "status");
place.setAttribute("aria-live", "polite");
place.setAttribute("aria-label", "Messages");

/** Where they are shown. */
export function toastPlace() {
  return place;
}

/** A message that stays, and is told anew, until it is ended. @param {string} text */
export function lastingToast(text) {
  last += 1;
  const id = last;
  toasts = [...toasts, { id, kind: /** @type {const} */ ("plain"), text }];
  show();
  return {
    /** @param {string} text */
    tell(text) {
      toasts = toasts.map((each) => (each.id === id ? { ...each, text } : each));
      show();
    },
    end: () => dismiss(id),
  };
}

/** @param {string} text @param {Toast["kind"]} [kind] */
export function toast(text, kind = "good") {
  last += 1;
  const id = last;
  toasts = [...toasts, { id, kind, text }].slice(-4);
  show();
  setTimeout(() => dismiss(id), kind === "bad" ? BAD_LASTS : LASTS);
}

/** @param {number} id */
function dismiss(id) {
  toasts = toasts.filter((each) => each.id !== id);
  show();
}

function show() {
  render(
    place,
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
