/** The log of a job: its newest lines, live while it runs; earlier lines on request. */

import { get, messageOf, optional, path } from "../api.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import { select } from "../fields.js";
import * as format from "../format.js";
import { t, withElements, word } from "../language.js";
import { button, copyCommand, empty, panel } from "../parts.js";
import { toast } from "../toasts.js";

/** @typedef {import("../page.js").Context} Context */

/** Lines of the first request. */
const FIRST_LINES = 100;
/** Lines of each further request. */
const MORE_LINES = 500;
const LEVELS = /** @type {[string, string][]} */ ([
  ["0", t("all levels")],
  ["20", t("info and above")],
  ["30", t("warning and above")],
  ["40", t("error and above")],
]);

/** The state of the log before its lines are loaded. @param {string} [level] */
export function emptyLog(level = "0") {
  return { level, lines: [], isWhole: false, isLoaded: false };
}

/**
 * Load the lines of the selected level after those that are loaded; at first the newest.
 *
 * @param {Context} context @param {AbortSignal} signal
 */
export async function loadLines({ route, ui }, signal) {
  const { level } = ui;
  const isFirst = !ui.lines.length;
  const query = isFirst ? { count: FIRST_LINES, newest: true } : { after: lastOf(ui.lines), count: MORE_LINES };
  const response = await optional(get(path("jobs", route.params.id, "logs"), { ...query, level }, signal));
  // Another level was selected meanwhile.
  if (ui.level !== level) return;
  const added = response?.items ?? [];
  if (isFirst) ui.isWhole = added.length < FIRST_LINES;
  ui.isLoaded = true;
  // A concurrent request may have loaded the same lines.
  const last = lastOf(ui.lines);
  ui.lines = [...ui.lines, ...added.filter((/** @type {any} */ line) => line.number > last)];
}

/** @param {any[]} lines */
function lastOf(lines) {
  return lines.at(-1)?.number ?? -1;
}

/** @param {Context} context */
export function logs(context) {
  const { ui, data } = context;
  const { lines } = ui;
  const count = format.plural(lines.length, "line");
  const isRunning = data.job.status.state === "running";
  return panel(
    t("Log"),
    {
      hint: isRunning ? t("new lines appear here") : ui.isWhole ? count : t("the newest {count}", { count }),
      aside: [
        select(t("Level"), ui.level, LEVELS, (level) => {
          context.update(emptyLog(level));
          void context.refresh();
        }),
        copyCommand(command("jobs", "logs", data.job.status.id, isRunning && "--follow"), t("Command")),
      ],
    },
    !ui.isWhole &&
      lines.length > 0 &&
      h(
        "p",
        { key: "earlier", class: "log-earlier" },
        button(t("Load all earlier lines"), { icon: "up", kind: "small" }, () => void earlier(context)),
      ),
    !lines.length
      ? empty(
          ui.isLoaded ? t("No log lines") : t("Loading …"),
          ui.level !== "0"
            ? ui.isLoaded && t("There is no line of this level.")
            : withElements("Lines appear here when the task logs with {logging} or {log}.", {
                logging: h("code", null, "logging"),
                log: h("code", null, "current_job().log"),
              }),
        )
      : // The layout is reversed, so that the list stays at the newest line until the user scrolls up.
        h(
          "div",
          { class: "log", tabindex: "0", role: "region", "aria-label": t("Log lines") },
          h("ol", { class: "mono" }, lines.map(logLine)),
        ),
  );
}

/** @param {any} line */
function logLine(line) {
  const level = levelName(line.level);
  return h(
    "li",
    { key: line.number, class: `log-${level}` },
    h("span", { class: "log-at num", title: format.instant(line.at) }, format.precise(line.at)),
    h("span", { class: "log-level" }, word(level)),
    h("span", { class: "log-message" }, line.message),
  );
}

/** @param {Context} context */
async function earlier(context) {
  const { ui, route } = context;
  const { level } = ui;
  const first = ui.lines[0].number;
  /** @type {any[]} */
  const loaded = [];
  try {
    for (let after = 0; ;) {
      const page = await get(path("jobs", route.params.id, "logs"), { after, count: MORE_LINES, level });
      loaded.push(...page.items.filter((/** @type {any} */ line) => line.number < first));
      const last = page.items[page.items.length - 1];
      if (!page.next || !last || last.number >= first) break;
      after = last.number;
    }
  } catch (error) {
    toast(messageOf(error), "bad");
    return;
  }
  // Another level was selected meanwhile, or another press of the button has loaded them.
  if (ui.level !== level || ui.lines[0]?.number !== first) return;
  context.update({ lines: [...loaded, ...ui.lines], isWhole: true });
}

/** @param {number} level */
function levelName(level) {
  return level >= 50 ? "critical" : level >= 40 ? "error" : level >= 30 ? "warning" : level >= 20 ? "info" : "debug";
}
