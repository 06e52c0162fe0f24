/** The actions for a limit or one of its keys. Each asks for confirmation first. */

import { path } from "../api.js";
import { isAtOnce } from "./buckets.js";
import { t } from "../language.js";
import { tierOf } from "./settings.js";
import { command, option } from "../commands.js";
import { ask } from "../dialogs.js";
import { h } from "../dom.js";
import { input, select, setter } from "../fields.js";
import * as format from "../format.js";
import { icon } from "../icons.js";
import { button, commandLine, copyCommand, effect } from "../parts.js";
import { cliForm, describe, parseRule, shortRule } from "../rule.js";

/** @typedef {import("../page.js").Context} Context */

/** @typedef {{limit: string, key: string | null, isPaused: boolean, isSet: boolean, rule: string | null, grantsPermits: boolean}} Target */

/** @param {Context} context @param {Target} target */
export function limitActions(context, target) {
  const why = context.denied("admin");
  const { limit: name, key } = target;
  const keys = keysOf(key);
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
      question: { title, action, danger, body: effect(text, command("limits", verb, name, ...keyOption)) },
    });
  return [
    target.isPaused
      ? button(t("Resume"), { icon: "ready", kind: "primary", why }, () => void resumeLimit(context, name, key))
      : button(t("Pause"), { icon: "paused", why }, () => void pauseLimit(context, name, key)),
    button(t("Set rule"), { icon: "limits", why }, () => void setRule(context, target)),
    target.isSet &&
      button(t("Unset"), { why }, () =>
        act(
          "unset",
          t("Limit {name} uses its declared rule for {keys}", { name, keys }),
          t("Unset the rule of {name} for {keys}?", { name, keys }),
          t("Use the declared rule"),
          t("The rule declared in the code applies again, also to jobs that are already waiting."),
        ),
      ),
    key !== null && button(t("Penalize"), { icon: "penalized", why }, () => void penalize(context, name, key)),
    key !== null &&
      button(t("Reset"), { icon: "retry", kind: "danger-quiet", why }, () =>
        act(
          "reset",
          t("Limit {name} is reset for {keys}", { name, keys }),
          t("Reset {name} for {keys}?", { name, keys }),
          t("Reset"),
          t("The usage of this key is set to zero, and a penalty ends. More jobs may then start than the rule allows. Running jobs keep their permits."),
          true,
        ),
      ),
    key !== null && button(t("Set tier"), { why, title: t("Assign this key to a tier") }, () => void assign(context, name, key)),
    key === null &&
      button(
        t("Remove"),
        { kind: "danger-quiet", icon: "close", why },
        () =>
          void context.act({
            method: "DELETE",
            path: path("limits", name),
            done: t("Limit {name} is removed", { name }),
            question: {
              title: t("Remove limit {name}?", { name }),
              danger: true,
              action: t("Remove the limit"),
              body: effect(
                t("This deletes its settings and the usage of its keys. It fails while jobs need the limit."),
                command("limits", "remove", name),
              ),
            },
          }),
      ),
    copyCommand(command("limits", "list", "--limit", name, ...keyOption)),
  ];
}

/** Ask, and pause a limit for a key or for all. @param {Context} context @param {string} name @param {string | null} key */
export function pauseLimit(context, name, key) {
  return context.act({
    ...pausing(name, key, "pause"),
    undo: pausing(name, key, "resume"),
    question: {
      title: t("Pause {name} for {keys}?", { name, keys: keysOf(key) }),
      action: t("Pause"),
      body: effect(
        t("No job starts under this limit until it is resumed. Running jobs continue. Waiting jobs keep their positions."),
        command("limits", "pause", name, ...option("--key", key)),
      ),
    },
  });
}

/** Ask, and resume a limit for a key or for all. @param {Context} context @param {string} name @param {string | null} key */
export function resumeLimit(context, name, key) {
  return context.act({
    ...pausing(name, key, "resume"),
    undo: pausing(name, key, "pause"),
    question: {
      title: t("Resume {name} for {keys}?", { name, keys: keysOf(key) }),
      action: t("Resume"),
      body: effect(
        t("Waiting jobs start as the rule allows."),
        command("limits", "resume", name, ...option("--key", key)),
      ),
    },
  });
}

/** The change that returns a key to the rule it has now: its own setting, or none. @param {string} name @param {string} key @param {any} ownSetting */
export function restoring(name, key, ownSetting) {
  if (!ownSetting?.rule)
    return { path: path("limits", name, "unset"), body: { key }, done: t("Limit {name} uses its declared rule for {keys}", { name, keys: keysOf(key) }) };
  const { kind, burst, slices } = JSON.parse(ownSetting.rule);
  const rule = cliForm(ownSetting.words);
  return { path: path("limits", name, "set"), body: { rule, kind, burst, slices, key }, done: t("The rule of {name} is now {rule}", { name, rule }) };
}

/** The change that pauses or resumes a limit. @param {string} name @param {string | null} key @param {"pause" | "resume"} verb */
export function pausing(name, key, verb) {
  const keys = keysOf(key);
  const done =
    verb === "pause" ? t("Limit {name} is paused for {keys}", { name, keys }) : t("Limit {name} is resumed for {keys}", { name, keys });
  return { path: path("limits", name, verb), body: key === null ? {} : { key }, done };
}

/** "all keys" or "key acme". @param {string | null} key */
export function keysOf(key) {
  return key === null ? t("all keys") : t("key {key}", { key: format.keyName(key) });
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
    title: t("Set the rule of {name}", { name }),
    action: t("Set the rule"),
    isReady,
    body: [
      h(
        "p",
        null,
        t("Current rule:"),
        " ",
        h("b", null, target.rule ? shortRule(target.rule) : t("unknown")),
        ". ",
        t("The new rule overrides the code, also after deploys, until it is unset. It applies to waiting jobs immediately. Usage so far still counts."),
      ),
    ],
    fields: (update) => {
      const parsed = rule();
      const change = setter(form, update);
      const scopeOption = form.scope === "tier" ? ["--tier", form.tier] : form.scope === "key" ? ["--key", key ?? ""] : [];
      return [
        input(
          isConcurrency ? t("Concurrent jobs") : t("Rule"),
          form.rule,
          isConcurrency ? "5" : "15/m, 100/h, 2/10s",
          change("rule"),
          { autofocus: true, required: true, "aria-describedby": "rule-preview" },
        ),
        /burst/.test(target.rule ?? "") &&
          input(t("Burst (unused starts that are saved up)"), form.burst, t("default"), change("burst"), {
            inputmode: "numeric",
          }),
        select(
          t("For"),
          form.scope,
          [
            ...(key === null ? [] : [/** @type {[string, string]} */ (["key", t("key {key}", { key: format.keyName(key) })])]),
            ["all", t("all keys")],
            ["tier", t("the keys of a tier")],
          ],
          change("scope"),
        ),
        form.scope === "tier" && input(t("Tier"), form.tier, "gold", change("tier")),
        h(
          "p",
          { class: "rule-preview", id: "rule-preview", "aria-live": "polite" },
          "error" in parsed
            ? form.rule
              ? h("span", { class: "bad-text" }, icon("failed"), parsed.error)
              : h(
                  "span",
                  { class: "faint" },
                  isConcurrency ? t("A number, for example 5") : t("A count and a period: s, m, h or d"),
                )
            : [icon("succeeded"), describe(parsed, burst())],
        ),
        isReady() &&
          commandLine(command("limits", "set", name, form.rule, ...option("--burst", form.burst), ...scopeOption)),
      ];
    },
  });
  if (!isConfirmed) return;
  const scope = form.scope === "tier" ? { tier: form.tier } : form.scope === "key" ? { key } : {};
  await context.act({
    path: path("limits", name, "set"),
    body: { rule: form.rule, ...(burst() === null ? {} : { burst: burst() }), ...scope },
    done: t("The rule of {name} is now {rule}", { name, rule: form.rule }),
  });
}

/** @param {Context} context @param {string} name @param {string} key */
async function penalize(context, name, key) {
  const form = { seconds: "60" };
  const isConfirmed = await ask({
    title: t("Penalize {key}?", { key: format.keyName(key) }),
    action: t("Penalize"),
    isReady: () => Number(form.seconds) > 0,
    body: h(
      "p",
      null,
      t("During this time no job of this key starts under {name}, for example because a remote service asked for a pause. Waiting jobs keep their positions. A reset ends the penalty.", { name }),
    ),
    fields: (update) => [
      input(t("Seconds"), form.seconds, "60", setter(form, update)("seconds"), { inputmode: "numeric", autofocus: true }),
      Number(form.seconds) > 0 &&
        h(
          "p",
          { class: "rule-preview" },
          t("Until {time}, in {duration}", { time: format.clock(format.now() + Number(form.seconds) * 1000), duration: format.duration(Number(form.seconds)) }),
        ),
      commandLine(command("limits", "penalize", name, form.seconds, ...option("--key", key))),
    ],
  });
  if (isConfirmed)
    await context.act({
      path: path("limits", name, "penalize"),
      body: { key, seconds: Number(form.seconds) },
      done: t("Key {key} of {name} is penalized for {duration}", { key: format.keyName(key), name, duration: format.duration(Number(form.seconds)) }),
    });
}

/** @param {Context} context @param {string} name @param {string} key */
async function assign(context, name, key) {
  const form = { tier: tierOf(context.data.settings, key) ?? "" };
  const isConfirmed = await ask({
    title: t("Tier of {key}", { key: format.keyName(key) }),
    action: t("Assign"),
    body: h(
      "p",
      null,
      t("The rule set for a tier applies to the keys in it. Leave the field empty to remove the key from its tier."),
    ),
    fields: (update) => [
      input(t("Tier"), form.tier, t("none"), setter(form, update)("tier"), { autofocus: true }),
      commandLine(command("limits", "assign", name, key, form.tier || "-")),
    ],
  });
  if (isConfirmed)
    await context.act({
      path: path("limits", name, "assign"),
      body: { key, tier: form.tier || null },
      done: form.tier ? t("{key} is in tier {tier}", { key: format.keyName(key), tier: form.tier }) : t("{key} is in no tier", { key: format.keyName(key) }),
    });
}
