/** What one can do to a limit, or to one key of it, each after a question. */

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
import { brief, described, parseRule } from "../rule.js";

/** @typedef {import("../page.js").Context} Context */

/** @typedef {{limit: string, key: string | null, isPaused: boolean, isSet: boolean, rule: string | null, grantsPermits: boolean}} Target */

/** @param {Context} context @param {Target} target */
export function steering(context, target) {
  const why = context.denied("admin");
  const { limit: name, key } = target;
  const whom = key === null ? "all keys" : `key ${format.keyName(key)}`;
  const body = key === null ? {} : { key };
  const keyOption = option("--key", key);
  const act = (
    /** @type {string} */ way,
    /** @type {string} */ done,
    /** @type {string} */ title,
    /** @type {string} */ action,
    /** @type {string} */ text,
    danger = false,
  ) =>
    void context.act({
      path: path("limits", name, way),
      body,
      done,
      question: {
        title,
        action,
        danger,
        body: [
          h("p", null, text),
          h("p", { class: "command-line" }, h("code", null, command("limits", way, name, ...keyOption))),
        ],
      },
    });
  return [
    target.isPaused
      ? button("Resume", { icon: "ready", kind: "primary", why }, () =>
          act(
            "resume",
            `${name} goes on for ${whom}`,
            `Resume ${name} for ${whom}?`,
            "Resume",
            "What waits starts as the rule allows.",
          ),
        )
      : button("Pause", { icon: "paused", why }, () =>
          act(
            "pause",
            `${name} is paused for ${whom}`,
            `Pause ${name} for ${whom}?`,
            "Pause",
            "Nothing starts on it until somebody resumes it. What runs goes on, and what waits loses nothing.",
          ),
        ),
    button("Set another rule", { icon: "limits", why }, () => void setRule(context, target)),
    target.isSet &&
      button("Unset", { why }, () =>
        act(
          "unset",
          `${name} is as declared for ${whom}`,
          `Unset ${name} for ${whom}?`,
          "Return to the declared rule",
          "The rule that the code declares holds again, at once, for everything that waits.",
        ),
      ),
    key !== null && button("Penalise", { icon: "penalized", why }, () => void penalize(context, name, key)),
    key !== null &&
      button("Reset", { icon: "retry", kind: "danger-quiet", why }, () =>
        act(
          "reset",
          `${name} of ${whom} is as new`,
          `Reset ${name} for ${whom}?`,
          "Forget what was used",
          "What this key has used is forgotten, and a penalty is lifted: its whole budget is free at once, so more may start than the rule allows. Permits that running jobs hold stay held.",
          true,
        ),
      ),
    key !== null && button("Tier", { why, title: "Put this key into a tier" }, () => void assign(context, name, key)),
    key === null &&
      button(
        "Remove",
        { kind: "danger-quiet", icon: "close", why },
        () =>
          void context.act({
            method: "DELETE",
            path: path("limits", name),
            done: `${name} is forgotten`,
            question: {
              title: `Remove limit ${name}?`,
              danger: true,
              action: "Forget the limit",
              body: [
                h(
                  "p",
                  null,
                  "Its settings and what its keys have used are forgotten. It is refused while jobs need it.",
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
  const isOfPermits = isAtOnce(target.rule) || target.grantsPermits;
  const said = { rule: "", burst: "", scope: key === null ? "all" : "key", tier: "" };
  const rule = () => parseRule(said.rule, isOfPermits);
  const burst = () => (said.burst === "" ? null : Number(said.burst));
  const isReady = () =>
    !("error" in rule()) &&
    (said.burst === "" || /^[1-9]\d*$/.test(said.burst)) &&
    (said.scope !== "tier" || said.tier !== "");
  const agreed = await ask({
    title: `Set another rule for ${name}`,
    action: "Set the rule",
    isReady,
    body: [
      h(
        "p",
        null,
        "Now: ",
        h("b", null, target.rule ? brief(target.rule) : "not known here"),
        ". The new rule beats the code and survives deploys, until it is unset. Everything that waits follows it at once; what a key has used stays used.",
      ),
    ],
    fields: (update) => {
      const parsed = rule();
      const change = (/** @type {"rule" | "burst" | "scope" | "tier"} */ field) => (/** @type {string} */ value) => {
        said[field] = value;
        update();
      };
      const whom = said.scope === "tier" ? ["--tier", said.tier] : said.scope === "key" ? ["--key", key ?? ""] : [];
      return h(
        "div",
        { class: "dialog-fields" },
        input(
          isOfPermits ? "How many at once" : "Rule",
          said.rule,
          isOfPermits ? "5" : "15/m, 100/h, 2/10s",
          change("rule"),
          { autofocus: true, required: true, "aria-describedby": "rule-preview" },
        ),
        /burst/.test(target.rule ?? "") &&
          input("Burst (how much unused budget is saved up)", said.burst, "as the rule says", change("burst"), {
            inputmode: "numeric",
          }),
        select(
          "For",
          said.scope,
          [
            ...(key === null ? [] : [/** @type {[string, string]} */ (["key", `key ${format.keyName(key)}`])]),
            ["all", "all keys"],
            ["tier", "the keys of a tier"],
          ],
          change("scope"),
        ),
        said.scope === "tier" && input("Tier", said.tier, "gold", change("tier")),
        h(
          "p",
          { class: "rule-preview", id: "rule-preview", "aria-live": "polite" },
          "error" in parsed
            ? said.rule
              ? h("span", { class: "bad-text" }, icon("failed"), parsed.error)
              : h(
                  "span",
                  { class: "faint" },
                  isOfPermits ? "A number, for example 5" : "A count and a period: s, m, h or d",
                )
            : [icon("succeeded"), described(parsed, burst())],
        ),
        isReady() &&
          h(
            "p",
            { class: "command-line" },
            h("code", null, command("limits", "set", name, said.rule, ...option("--burst", said.burst), ...whom)),
          ),
      );
    },
  });
  if (!agreed) return;
  const whom = said.scope === "tier" ? { tier: said.tier } : said.scope === "key" ? { key } : {};
  await context.act({
    path: path("limits", name, "set"),
    body: { rule: said.rule, ...(burst() === null ? {} : { burst: burst() }), ...whom },
    done: `${name} is now ${said.rule}`,
  });
}

/** @param {Context} context @param {string} name @param {string} key */
async function penalize(context, name, key) {
  const said = { seconds: "60" };
  const agreed = await ask({
    title: `Penalise ${format.keyName(key)}?`,
    action: "Let nothing start",
    isReady: () => Number(said.seconds) > 0,
    body: h(
      "p",
      null,
      `Nothing starts on ${name} of this key for that long, as when the other side asked for a pause. What waits keeps its place; a reset lifts it.`,
    ),
    fields: (update) =>
      h(
        "div",
        { class: "dialog-fields" },
        input(
          "Seconds",
          said.seconds,
          "60",
          (value) => {
            said.seconds = value;
            update();
          },
          { inputmode: "numeric", autofocus: true },
        ),
        Number(said.seconds) > 0 &&
          h(
            "p",
            { class: "rule-preview" },
            `Until ${format.clock(format.now() + Number(said.seconds) * 1000)}, in ${format.duration(Number(said.seconds))}`,
          ),
        h(
          "p",
          { class: "command-line" },
          h("code", null, command("limits", "penalize", name, said.seconds, ...option("--key", key))),
        ),
      ),
  });
  if (agreed)
    await context.act({
      path: path("limits", name, "penalize"),
      body: { key, seconds: Number(said.seconds) },
      done: `Nothing starts on ${name} of ${format.keyName(key)} for ${format.duration(Number(said.seconds))}`,
    });
}

/** @param {Context} context @param {string} name @param {string} key */
async function assign(context, name, key) {
  const member = context.data.settings.find(
    (/** @type {any} */ setting) => setting.scope === "member" && setting.target === patternOf(key),
  );
  const said = { tier: member?.tier ?? "" };
  const agreed = await ask({
    title: `Tier of ${format.keyName(key)}`,
    action: "Assign",
    body: h(
      "p",
      null,
      "The rule that is set for a tier holds for the keys in it. Leave it empty to take the key out of its tier.",
    ),
    fields: (update) =>
      h(
        "div",
        { class: "dialog-fields" },
        input(
          "Tier",
          said.tier,
          "none",
          (value) => {
            said.tier = value;
            update();
          },
          { autofocus: true },
        ),
        h("p", { class: "command-line" }, h("code", null, command("limits", "assign", name, key, said.tier || "-"))),
      ),
  });
  if (agreed)
    await context.act({
      path: path("limits", name, "assign"),
      body: { key, tier: said.tier || null },
      done: said.tier ? `${format.keyName(key)} is in tier ${said.tier}` : `${format.keyName(key)} is in no tier`,
    });
}
