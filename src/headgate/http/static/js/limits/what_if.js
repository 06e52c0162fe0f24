/** What another rule would change for a key: when its waiting jobs have started, as the server predicts it. */

import { ApiError, get, messageOf, path } from "../api.js";
import { command, option } from "../commands.js";
import { h } from "../dom.js";
import { input } from "../fields.js";
import * as format from "../format.js";
import { icon } from "../icons.js";
import { t } from "../language.js";
import { button, commandLine, panel } from "../parts.js";
import { cliForm, parseRule, periodName, shortRule } from "../rule.js";
import { restoring } from "./actions.js";

/** @typedef {import("../page.js").Context} Context */
/** @typedef {{rule: string, clears_at: string | null, points: {at: string, waiting: number}[]}} Prediction */

/** Milliseconds after the last change of the rule until the server is asked. */
const DELAY = 120;
/** How many times the rate in force the slider reaches. */
const MOST_TIMES = 4;

/** What is predicted for a key: under its rule, and under the chosen one; null if this app does not declare the limit. @param {Context} context @param {AbortSignal} [signal] */
export async function loadWhatIf(context, signal) {
  const { limit, key } = context.route.params;
  const rule = chosenRule(context);
  const parsed = rule === null ? null : parseRule(rule, false);
  if (parsed && "error" in parsed) return { ...context.data?.whatIf, then: null, error: parsed.error };
  try {
    return { ...(await get(path("limits", limit, "what-if"), { key, rule }, signal)), error: "" };
  } catch (error) {
    if (!(error instanceof ApiError) || ![400, 404, 422].includes(error.status)) throw error;
    return rule === null ? null : { ...context.data?.whatIf, then: null, error: error.message };
  }
}

/** @param {Context} context @param {any} bucket @param {any} ownSetting */
export function whatIfPanel(context, bucket, ownSetting) {
  const { whatIf } = context.data;
  const { limit, key } = context.route.params;
  const inForce = parseRule(cliForm(whatIf?.now?.rule ?? ""), false);
  if (!whatIf?.waiting || "error" in inForce || inForce.seconds === null) return null;
  const rule = chosenRule(context);
  const then = rule === null ? null : whatIf.then;
  const { count } = inForce;
  const step = Math.max(1, 10 ** Math.floor(Math.log10(count / 10)));
  const shown = rule === null ? String(count) : rule.split("/")[0];
  const change = (/** @type {string} */ value) => choose(context, value, cliForm(whatIf.now.rule).split("/")[1]);
  return panel(
    t("What if"),
    { class: "what-if", hint: t("if you enqueue no more jobs; only this limit is considered") },
    h(
      "div",
      { class: "what-if-parts" },
      h(
        "div",
        { class: "stack" },
        h(
          "div",
          { class: "what-if-rate" },
          h("input", {
            type: "range",
            min: String(step),
            max: String(count * MOST_TIMES),
            step: String(step),
            value: shown,
            "aria-label": t("Another rate"),
            "aria-valuetext": `${shortRule(rule ?? whatIf.now.rule)}${then ? `: ${whenClear(then)}` : ""}`,
            oninput: (/** @type {any} */ event) => change(event.target.value),
          }),
          input(t("Count per {unit}", { unit: periodName(inForce.seconds) }), shown, String(count), change, { inputmode: "numeric" }),
        ),
        predictionLine(t("Now"), whatIf.now, bucket, "grey"),
        h(
          "div",
          { "aria-live": "polite" },
          whatIf.error && rule !== null
            ? h("p", { class: "bad-text" }, icon("failed"), whatIf.error)
            : then
              ? predictionLine(t("What if"), then, bucket, "blue", whatIf.now)
              : h("p", { class: "hint" }, t("Move the slider to see what another rate changes.")),
        ),
        then && commandLine(command("limits", "set", limit, String(rule), ...option("--key", key))),
        h(
          "div",
          { class: "actions" },
          button(t("Apply"), { kind: "primary", why: context.denied("admin") ?? (then ? null : t("Choose another rate first")) }, () =>
            void apply(context, limit, key, String(rule), ownSetting),
          ),
          rule !== null && button(t("Back to the current rate"), {}, () => choose(context, null, "")),
        ),
      ),
      curve(whatIf.waiting, whatIf.now, then),
    ),
  );
}

/** The rule that is chosen on this page; null for that in force, as after a change to another key. @param {Context} context @returns {string | null} */
function chosenRule({ ui, route }) {
  return ui.whatIf?.of === nameOf(route) ? ui.whatIf.rule : null;
}

/** @param {import("../router.js").Route} route */
function nameOf({ params }) {
  return `${params.limit} ${params.key}`;
}

/** Choose a rate, and ask for its prediction when the choice rests. @param {Context} context @param {string | null} count @param {string} period */
function choose(context, count, period) {
  clearTimeout(context.ui.whatIf?.timer);
  const rule = count === null ? null : `${count}/${period}`;
  const timer = window.setTimeout(async () => {
    try {
      const whatIf = await loadWhatIf(context);
      // The choice may have changed meanwhile.
      if (chosenRule(context) === rule) context.data.whatIf = whatIf;
    } catch (error) {
      context.data.whatIf = { ...context.data.whatIf, then: null, error: messageOf(error) };
    }
    context.update();
  }, DELAY);
  context.update({ whatIf: { of: nameOf(context.route), rule, timer } });
}

/** @param {Context} context @param {string} limit @param {string} key @param {string} rule @param {any} ownSetting */
async function apply(context, limit, key, rule, ownSetting) {
  const isSet = await context.act({
    path: path("limits", limit, "set"),
    body: { rule, key },
    done: t("The rule of {name} is now {rule}", { name: limit, rule }),
    undo: restoring(limit, key, ownSetting),
  });
  if (isSet) choose(context, null, "");
}

/** @param {string} name @param {Prediction} prediction @param {any} bucket @param {string} tone @param {Prediction} [before] */
function predictionLine(name, prediction, bucket, tone, before) {
  return h(
    "p",
    { class: "what-if-line" },
    h("span", { class: `swatch swatch-area tone-${tone}` }),
    h("span", null, h("b", null, name), `: ${shortRule(prediction.rule)}, `, bucket?.is_paused ? t("paused, so no job starts") : whenClear(prediction), before && difference(before, prediction)),
  );
}

/** @param {Prediction} prediction */
function whenClear({ clears_at: at }) {
  return at ? t("clear at {time}", { time: format.clock(at) }) : t("cannot be predicted");
}

/** @param {Prediction} before @param {Prediction} then */
function difference(before, then) {
  if (!before.clears_at || !then.clears_at) return "";
  const seconds = (Date.parse(before.clears_at) - Date.parse(then.clears_at)) / 1000;
  if (Math.abs(seconds) < 1) return "";
  const time = format.coarse(Math.abs(seconds));
  return `, ${seconds > 0 ? t("{time} sooner", { time }) : t("{time} later", { time })}`;
}

/** The backlog over time under both rules. @param {number} waiting @param {Prediction} now @param {Prediction | null} then */
function curve(waiting, now, then) {
  const all = [now, ...(then ? [then] : [])].filter(({ points }) => points.length);
  if (!all.length) return null;
  const from = format.now();
  const ends = all.map(({ clears_at: at }) => Date.parse(String(at)));
  const to = Math.max(from + 1000, ...ends);
  const place = (/** @type {number} */ at, /** @type {number} */ jobs) =>
    `${((Math.max(0, at - from) / (to - from)) * 100).toFixed(2)},${(2 + (1 - jobs / waiting) * 36).toFixed(2)}`;
  const line = (/** @type {Prediction} */ { points }) =>
    [place(from, waiting), ...points.map((point) => place(Date.parse(point.at), point.waiting))].join("L");
  const label = all.map((each) => `${shortRule(each.rule)}: ${whenClear(each)}`).join("; ");
  return h(
    "figure",
    { class: "what-if-curve" },
    h(
      "svg",
      { viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img", "aria-label": t("Waiting jobs over time, {count} now. {rules}", { count: format.count(waiting), rules: label }) },
      h("path", { class: "line tone-grey", d: `M${line(now)}` }),
      then && then.points.length > 0 && [
        h("path", { class: "area tone-blue", d: `M0,38L${line(then)}L0,38z` }),
        h("path", { class: "line tone-blue", d: `M${line(then)}` }),
      ],
    ),
    h("figcaption", { class: "num faint" }, h("span", null, t("now: {jobs}", { jobs: format.plural(waiting, "job") })), h("span", null, format.clock(to))),
  );
}
