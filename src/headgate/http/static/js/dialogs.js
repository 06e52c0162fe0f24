/** Confirmation dialogs that describe the effect of an action. */

import { h, render } from "./dom.js";
import { icon } from "./icons.js";
import { t } from "./language.js";

/**
 * @typedef {{
 *   title: string, body?: import("./dom.js").Children, action?: string, dismiss?: string, danger?: boolean, wide?: boolean,
 *   fields?: (update: () => void) => import("./dom.js").Children,
 *   isReady?: () => boolean, submit?: () => Promise<boolean>,
 * }} Question
 *
 * `submit` sends the form when it is confirmed: the dialog stays open until it returns true.
 */

/** Show a dialog and return whether it was confirmed. Escape, a click outside and going back dismiss it. @param {Question} question @returns {Promise<boolean>} */
export function ask(question) {
  return new Promise((resolve) => {
    const dialog = document.createElement("dialog");
    dialog.className = question.wide ? "dialog wide" : "dialog";
    dialog.setAttribute("aria-labelledby", "dialog-title");
    let isSending = false;
    const close = (/** @type {boolean} */ isConfirmed) => {
      // What is being sent may succeed, and a form that is closed cannot show its error.
      if (isConfirmed || !isSending) dialog.close(isConfirmed ? "yes" : "");
    };
    const confirm = async () => {
      if (isSending || !(question.isReady?.() ?? true)) return;
      isSending = true;
      try {
        if (!question.submit || (await question.submit())) close(true);
      } finally {
        isSending = false;
        show();
        /** @type {HTMLElement | null} */ (dialog.querySelector('[aria-invalid="true"]'))?.focus();
      }
    };
    const show = () => render(dialog, content(question, close, confirm, show));
    // Back and forward show another page, which the question is not about.
    const leave = () => close(false);
    addEventListener("popstate", leave);
    dialog.addEventListener("close", () => {
      removeEventListener("popstate", leave);
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    dialog.addEventListener("pointerdown", (event) => {
      // The event of its scroll bar has the same target as one beside it.
      const { left, right, top, bottom } = dialog.getBoundingClientRect();
      const isBeside = event.clientX < left || event.clientX > right || event.clientY < top || event.clientY > bottom;
      if (event.target === dialog && isBeside) close(false);
    });
    dialog.addEventListener("cancel", (event) => isSending && event.preventDefault());
    // A browser closes a dialog at the second Escape, whatever became of the first, unless the key is refused.
    dialog.addEventListener("keydown", (event) => isSending && event.key === "Escape" && event.preventDefault());
    document.body.append(dialog);
    show();
    dialog.showModal();
  });
}

/** @param {Question} question @param {(isConfirmed: boolean) => void} close @param {() => Promise<void>} confirm @param {() => void} show */
function content(question, close, confirm, show) {
  const isReady = question.isReady?.() ?? true;
  return h(
    "form",
    {
      class: "dialog-body",
      onsubmit: (/** @type {SubmitEvent} */ event) => {
        event.preventDefault();
        if (question.action) void confirm();
      },
    },
    h(
      "header",
      null,
      h("h2", { id: "dialog-title" }, question.title),
      h(
        "button",
        { type: "button", class: "quiet", "aria-label": t("Close"), onclick: () => close(false) },
        icon("close"),
      ),
    ),
    h(
      "div",
      { class: "dialog-text" },
      question.body,
      question.fields && h("div", { class: "dialog-fields" }, question.fields(show)),
    ),
    question.action &&
      h(
        "footer",
        null,
        h("button", { type: "button", onclick: () => close(false) }, question.dismiss ?? t("Cancel")),
        h(
          "button",
          {
            type: "submit",
            class: question.danger ? "danger" : "primary",
            disabled: !isReady,
            autofocus: !question.fields,
          },
          question.action,
        ),
      ),
  );
}
