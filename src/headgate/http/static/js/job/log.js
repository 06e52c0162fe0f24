/** What a job has logged: its newest lines, which follow while it runs, and those before on demand. */

import { get, optional, path } from "../api.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import { select } from "../fields.js";
import * as format from "../format.js";
import { button, copyCommand, empty, panel } from "../parts.js";

/** @typedef {import("../page.js").Context} Context */

const LINES = 100;
const MANY = 500;
const LEVELS = /** @type {[string, string][]} */ ([
  ["0", "all levels"],
  ["20", "info and above"],
  ["30", "warning and above"],
  ["40", "error and above"],
]);

/** What a visit knows of the log at first. */
export function noLines() {
  return { level: "0", lines: [], isWhole: false };
}

/**
 * Ask for the lines that came after those that are known; at first for the newest.
 *
 * @param {Context} context @param {AbortSignal} signal
 */
export async function askLines({ route, ui }, signal) {
  const isFirst = !ui.lines.length;
  const query = isFirst ? { count: LINES, newest: true } : { after: lastOf(ui.lines), count: MANY };
  const answer = await optional(get(path("jobs", route.params.id, "logs"), query, signal));
  const found = answer?.items ?? [];
  if (isFirst) ui.isWhole = found.length < LINES;
  // Another answer may have brought the same lines meanwhile.
  const last = lastOf(ui.lines);
  ui.lines = [...ui.lines, ...found.filter((/** @type {any} */ line) => line.number > last)];
}

/** @param {any[]} lines */
function lastOf(lines) {
  return lines.at(-1)?.number ?? -1;
}

/** @param {Context} context */
export function logs(context) {
  const { ui, data } = context;
  const lines = ui.lines.filter((/** @type {any} */ line) => line.level >= Number(ui.level));
  const isRunning = data.job.status.state === "running";
  return panel(
    "Log",
    {
      hint: isRunning ? "new lines follow" : format.plural(ui.lines.length, "line"),
      aside: [
        select("Level", ui.level, LEVELS, (level) => context.update({ level })),
        copyCommand(command("jobs", "logs", data.job.status.id, isRunning && "--follow"), "Command"),
      ],
    },
    !ui.isWhole &&
      ui.lines.length > 0 &&
      h(
        "p",
        { key: "earlier", class: "log-earlier" },
        button("Load all earlier lines", { icon: "up", kind: "small" }, () => void earlier(context)),
      ),
    !lines.length
      ? empty(
          "Nothing logged",
          ui.lines.length
            ? "No line is of this level."
            : [
                "What the task logs while it runs shows here, with ",
                h("code", null, "logging"),
                " or ",
                h("code", null, "current_job().log"),
                ".",
              ],
        )
      : // Its end is its beginning, so that it stays at the newest line unless somebody scrolls away.
        h(
          "div",
          { class: "log", tabindex: "0", role: "region", "aria-label": "Log lines" },
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
    h("span", { class: "log-level" }, level),
    h("span", { class: "log-said" }, line.message),
  );
}

/** @param {Context} context */
async function earlier(context) {
  const { ui, route } = context;
  const first = ui.lines[0].number;
  /** @type {any[]} */
  const found = [];
  for (let after = 0; ;) {
    const page = await get(path("jobs", route.params.id, "logs"), { after, count: MANY });
    found.push(...page.items.filter((/** @type {any} */ line) => line.number < first));
    const last = page.items[page.items.length - 1];
    if (!page.next || !last || last.number >= first) break;
    after = last.number;
  }
  context.update({ lines: [...found, ...ui.lines], isWhole: true });
}

/** @param {number} level */
function levelName(level) {
  return level >= 50 ? "critical" : level >= 40 ? "error" : level >= 30 ? "warning" : level >= 20 ? "info" : "debug";
}
