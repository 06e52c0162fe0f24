/** The actions for a limit or one of its keys. Each asks for confirmation first. */

import { path } from "../api.js";
import { isAtOnce } from "./buckets.js";
import { patternOf } from "./settings.js";
import { command, option } from "../commands.js";
import { ask } from "../dialogs.js";
import { h } from "../dom.js";
import { input, select } from "../fields.js";
import * as format from "../format.js";
import { icon } from "../icons.js";
import { button, copyCommand } from "../parts.js";
import { describe, parseRule, shortRule } from "../rule.js";

/** @typedef {import("../page.js").Context} Context */

/** @typedef {{limit: string, key: string | null, isPaused: boolean, isSet: boolean, rule: string | null, grantsPermits: boolean}} Target */

/** @param {Context} context @param {Target} target */
export function limitActions(context, target) {
  const why = context.denied("admin");
  const { limit: name, key } = target;
  const keys = key === null ? "all keys" : `key ${format.keyName(key)}`;
  const body = key === null ? {} : { key };
  const keyOption = option("--key", key);
  const act = (
    /** @type {string} */ verb,
    /** @type {string} */ done,
    /** @type {string} */ title,
    /** @type {string} */ action,
    /** @type {string} */ text,
    danger = false,
  ) =>
    void context.act({
      path: path("limits", name, verb),
      body,
      done,
      question: {
        title,
        action,
        danger,
        body: [
          h("p", null, text),
          h("p", { class: "command-line" }, h("code", null, command("limits", verb, name, ...keyOption))),
        ],
      },
    });
  return [
    target.isPaused
      ? button("Resume", { icon: "ready", kind: "primary", why }, () =>
          act(
            "resume",
            `Limit ${name} is resumed for ${keys}`,
            `Resume ${name} for ${keys}?`,
            "Resume",
            "Waiting jobs start as the rule allows.",
          ),
        )
      : button("Pause", { icon: "paused", why }, () =>
          act(
            "pause",
            `Limit ${name} is paused for ${keys}`,
            `Pause ${name} for ${keys}?`,
            "Pause",
            "No job starts under this limit until it is resumed. Running jobs continue. Waiting jobs keep their positions.",
          ),
        ),
    button("Set rule", { icon: "limits", why }, () => void setRule(context, target)),
    target.isSet &&
      button("Unset", { why }, () =>
        act(
          "unset",
          `Limit ${name} uses its declared rule for ${keys}`,
          `Unset the rule of ${name} for ${keys}?`,
          "Use the declared rule",
          "The rule declared in the code applies again, also to jobs that are already waiting.",
        ),
      ),
    key !== null && button("Penalise", { icon: "penalized", why }, () => void penalize(context, name, key)),
    key !== null &&
      button("Reset", { icon: "retry", kind: "danger-quiet", why }, () =>
        act(
          "reset",
          `Limit ${name} is reset for ${keys}`,
          `Reset ${name} for ${keys}?`,
          "Reset",
          "The usage of this key is set to zero and a penalty ends. More jobs may then start than the rule allows. Running jobs keep their permits.",
          true,
        ),
      ),
    key !== null && button("Tier", { why, title: "Assign this key to a tier" }, () => void assign(context, name, key)),
    key === null &&
      button(
        "Remove",
        { kind: "danger-quiet", icon: "close", why },
        () =>
          void context.act({
            method: "DELETE",
            path: path("limits", name),
            done: `Limit ${name} is removed`,
            question: {
              title: `Remove limit ${name}?`,
              danger: true,
              action: "Remove the limit",
              body: [
                h(
                  "p",
                  null,
                  "This deletes its settings and the usage of its keys. It fails while jobs need the limit.",
                ),
                h("p", { class: "command-line" }, h("code", null, command("limits", "remove", name))),
              ],
            },
          }),
      ),
    copyCommand(command("limits", "list", "--limit", name, ...keyOption)),
  ];
}

/** @param {Context} context @param {Target} target */
async function setRule(context, target) {
  const { limit: name, key } = target;
  const isConcurrency = isAtOnce(target.rule) || target.grantsPermits;
  const form = { rule: "", burst: "", scope: key === null ? "all" : "key", tier: "" };
  const rule = () => parseRule(form.rule, isConcurrency);
  const burst = () => (form.burst === "" ? null : Number(form.burst));
  const isReady = () =>
    !("error" in rule()) &&
    (form.burst === "" || /^[1-9]\d*$/.test(form.burst)) &&
    (form.scope !== "tier" || form.tier !== "");
  const isConfirmed = await ask({
    title: `Set the rule of ${name}`,
    action: "Set the rule",
    isReady,
    body: [
      h(
        "p",
        null,
        "Current rule: ",
        h("b", null, target.rule ? shortRule(target.rule) : "unknown"),
        ". The new rule overrides the code, also after deploys, until it is unset. It applies to waiting jobs immediately. Usage so far still counts.",
      ),
    ],
    fields: (update) => {
      const parsed = rule();
      const change = (/** @type {"rule" | "burst" | "scope" | "tier"} */ field) => (/** @type {string} */ value) => {
        form[field] = value;
        update();
      };
      const scopeOption = form.scope === "tier" ? ["--tier", form.tier] : form.scope === "key" ? ["--key", key ?? ""] : [];
      return h(
        "div",
        { class: "dialog-fields" },
        input(
          isConcurrency ? "Concurrent jobs" : "Rule",
          form.rule,
          isConcurrency ? "5" : "15/m, 100/h, 2/10s",
          change("rule"),
          { autofocus: true, required: true, "aria-describedby": "rule-preview" },
        ),
        /burst/.test(target.rule ?? "") &&
          input("Burst (unused starts that are saved up)", form.burst, "default", change("burst"), {
            inputmode: "numeric",
          }),
        select(
          "For",
          form.scope,
          [
            ...(key === null ? [] : [/** @type {[string, string]} */ (["key", `key ${format.keyName(key)}`])]),
            ["all", "all keys"],
            ["tier", "the keys of a tier"],
          ],
          change("scope"),
        ),
        form.scope === "tier" && input("Tier", form.tier, "gold", change("tier")),
        h(
          "p",
          { class: "rule-preview", id: "rule-preview", "aria-live": "polite" },
          "error" in parsed
            ? form.rule
              ? h("span", { class: "bad-text" }, icon("failed"), parsed.error)
              : h(
                  "span",
                  { class: "faint" },
                  isConcurrency ? "A number, for example 5" : "A count and a period: s, m, h or d",
                )
            : [icon("succeeded"), describe(parsed, burst())],
        ),
        isReady() &&
          h(
            "p",
            { class: "command-line" },
            h("code", null, command("limits", "set", name, form.rule, ...option("--burst", form.burst), ...scopeOption)),
          ),
      );
    },
  });
  if (!isConfirmed) return;
  const scope = form.scope === "tier" ? { tier: form.tier } : form.scope === "key" ? { key } : {};
  await context.act({
    path: path("limits", name, "set"),
    body: { rule: form.rule, ...(burst() === null ? {} : { burst: burst() }), ...scope },
    done: `The rule of ${name} is now ${form.rule}`,
  });
}

/** @param {Context} context @param {string} name @param {string} key */
async function penalize(context, name, key) {
  const form = { seconds: "60" };
  const isConfirmed = await ask({
    title: `Penalise ${format.keyName(key)}?`,
    action: "Penalise",
    isReady: () => Number(form.seconds) > 0,
    body: h(
      "p",
      null,
      `No job of this key starts under ${name} for this time, as when a remote service asks for a pause. Waiting jobs keep their positions. A reset ends the penalty.`,
    ),
    fields: (update) =>
      h(
        "div",
        { class: "dialog-fields" },
        input(
          "Seconds",
          form.seconds,
          "60",
          (value) => {
            form.seconds = value;
            update();
          },
          { inputmode: "numeric", autofocus: true },
        ),
        Number(form.seconds) > 0 &&
          h(
            "p",
            { class: "rule-preview" },
            `Until ${format.clock(format.now() + Number(form.seconds) * 1000)}, in ${format.duration(Number(form.seconds))}`,
          ),
        h(
          "p",
          { class: "command-line" },
          h("code", null, command("limits", "penalize", name, form.seconds, ...option("--key", key))),
        ),
      ),
  });
  if (isConfirmed)
    await context.act({
      path: path("limits", name, "penalize"),
      body: { key, seconds: Number(form.seconds) },
      done: `Key ${format.keyName(key)} of ${name} is penalised for ${format.duration(Number(form.seconds))}`,
    });
}

/** @param {Context} context @param {string} name @param {string} key */
async function assign(context, name, key) {
  const member = context.data.settings.find(
    (/** @type {any} */ setting) => setting.scope === "member" && setting.target === patternOf(key),
  );
  const form = { tier: member?.tier ?? "" };
  const isConfirmed = await ask({
    title: `Tier of ${format.keyName(key)}`,
    action: "Assign",
    body: h(
      "p",
      null,
      "The rule set for a tier applies to the keys in it. Leave the field empty to remove the key from its tier.",
    ),
    fields: (update) =>
      h(
        "div",
        { class: "dialog-fields" },
        input(
          "Tier",
          form.tier,
          "none",
          (value) => {
            form.tier = value;
            update();
          },
          { autofocus: true },
        ),
        h("p", { class: "command-line" }, h("code", null, command("limits", "assign", name, key, form.tier || "-"))),
      ),
  });
  if (isConfirmed)
    await context.act({
      path: path("limits", name, "assign"),
      body: { key, tier: form.tier || null },
      done: form.tier ? `${format.keyName(key)} is in tier ${form.tier}` : `${format.keyName(key)} is in no tier`,
    });
}
