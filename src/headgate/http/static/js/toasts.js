/** Short messages about the results of actions; screen readers announce them. */

import { h, render } from "./dom.js";
import { icon } from "./icons.js";
import { t } from "./language.js";

/** @typedef {{label: string, run: () => void}} ToastAction */
/** @typedef {{id: number, kind: "good" | "bad" | "plain", text: string, action?: ToastAction}} Toast */

/** Milliseconds. */
const DURATION = 5_000;
/** Of errors, and of messages with a button. */
const LONG_DURATION = 12_000;

/** @type {Toast[]} */
let toasts = [];
let lastId = 0;

const container = document.createElement("div");
container.className = "toasts";
container.setAttribute("role", "status");
container.setAttribute("aria-live", "polite");
container.setAttribute("aria-label", t("Messages"));

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

/** Show a message, with a button such as Undo if it has an action. @param {string} text @param {Toast["kind"]} [kind] @param {ToastAction} [action] */
export function toast(text, kind = "good", action) {
  lastId += 1;
  const id = lastId;
  toasts = [...toasts, { id, kind, text, action }].slice(-4);
  show();
  setTimeout(() => dismiss(id), kind === "bad" || action ? LONG_DURATION : DURATION);
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
        each.action &&
          h(
            "button",
            {
              type: "button",
              class: "small toast-action",
              onclick: () => {
                dismiss(each.id);
                each.action?.run();
              },
            },
            each.action.label,
          ),
        h(
          "button",
          { type: "button", class: "quiet", "aria-label": t("Dismiss"), onclick: () => dismiss(each.id) },
          icon("close"),
        ),
      ),
    ),
  );
}
