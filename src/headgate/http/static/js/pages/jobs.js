/** Jobs: find them by what they are and wait for, and change one, some, or all that were found. */

import { get, maySearchText, optional } from "../api.js";
import { ACTIONS, changeAll, changeChosen } from "../bulk.js";
import { command, filterOptions } from "../commands.js";
import { classes, h } from "../dom.js";
import { select, text } from "../fields.js";
import * as format from "../format.js";
import { icon } from "../icons.js";
import * as live from "../live.js";
import { pager } from "../pager.js";
import {
  badge,
  button,
  copyCommand,
  countdown,
  empty,
  heading,
  held,
  jobLink,
  jobState,
  lasting,
  link,
  tabs,
  when,
} from "../parts.js";
import { address } from "../router.js";
import { table } from "../table.js";

/** @typedef {import("../page.js").Context} Context */

const TEXTS = /** @type {[string, string, string][]} */ ([
  ["queue", "Queue", "any"],
  ["task", "Task", "any"],
  ["limit", "Limit", "any"],
  ["key", "Key of a limit", "tenant:42"],
  ["text", "Text in payload", "part of its JSON"],
  ["error", "Error type", "TimeoutError"],
  ["unique_key", "Unique key", ""],
  ["schedule", "Schedule", ""],
  ["batch", "Batch", "its id"],
  ["node", "Node", "its id"],
]);
const TIMES = /** @type {[string, string][]} */ ([
  ["enqueued_after", "Enqueued since"],
  ["enqueued_before", "Enqueued before"],
  ["finished_after", "Finished since"],
  ["finished_before", "Finished before"],
]);
const SHOWN_FIRST = 5;
/** How many pages are asked for in a row while none has a job. */
const MOST_PAGES = 40;
const AGES = /** @type {[string, string][]} */ ([
  ["", "any time"],
  ["5m", "5 min ago"],
  ["15m", "15 min ago"],
  ["1h", "1 h ago"],
  ["6h", "6 h ago"],
  ["24h", "24 h ago"],
  ["7d", "7 days ago"],
]);

/** @type {[string, Record<string, string>, (totals: any) => number][]} */
const VIEWS = [
  ["All", {}, () => NaN],
  ["Ready", { view: "ready" }, (totals) => totals.ready],
  ["Throttled", { view: "throttled" }, (totals) => totals.throttled],
  ["Scheduled", { view: "scheduled" }, (totals) => totals.scheduled],
  ["Blocked", { view: "blocked" }, (totals) => totals.blocked],
  ["Running", { state: "running" }, (totals) => totals.running],
  ["Succeeded", { state: "succeeded" }, (totals) => totals.succeeded],
  ["Failed", { state: "failed" }, (totals) => totals.failed],
  ["Cancelled", { state: "cancelled" }, (totals) => totals.cancelled],
];

/** @type {import("../page.js").PageDefinition} */
export const jobs = {
  title: ({ query }) => {
    const view = query.get("view") ?? query.get("state");
    return view ? `${view.charAt(0).toUpperCase()}${view.slice(1)} jobs` : "Jobs";
  },
  ui: () => ({ chosen: new Set(), isOpen: false }),
  // Where hundreds come each second, nobody could click a row, or keep what he has chosen.
  standsStill: (context) => context.ui.chosen.size > 0 || context.isPointedAt,
  load: async ({ route, ui }, signal) => {
    const filter = asked(route.query);
    const question = { ...filter, order: route.query.get("order"), count: 50 };
    const [page, count, tasks] = await Promise.all([
      firstWithJobs(question, route.query.get("before"), signal),
      optional(get("jobs/count", filter, signal)),
      ui.tasks ?? optional(get("tasks", {}, signal)),
    ]);
    ui.tasks = tasks;
    // What is shown no more is not to be changed unseen.
    ui.chosen = new Set(
      page.items.map((/** @type {any} */ job) => job.id).filter((/** @type {string} */ id) => ui.chosen.has(id)),
    );
    return { ...page, count };
  },
  view: (context) => {
    const { data, route, ui } = context;
    return [
      heading("Jobs", { actions: copyCommand(command("jobs", "list", ...filterOptions(asked(route.query)))) }),
      viewTabs(context),
      filters(context),
      h(
        "section",
        { class: "panel bare", key: "list", "aria-label": "Jobs found" },
        bar(context),
        table({
          label: "Jobs",
          rows: data.items,
          key: (job) => job.id,
          chosen: context.denied("operate") ? undefined : ui.chosen,
          onChoose: (chosen) => context.update({ chosen }),
          empty: nothing(context),
          columns: [
            {
              name: "Job",
              extra: "job-cell",
              cell: (job) => [jobLink(job.id), h("b", { class: "cell-below" }, job.task)],
            },
            {
              name: "State",
              cell: (job) => [
                badge(jobState(job)),
                job.attempt > 1 && h("span", { class: "cell-below faint" }, `attempt ${job.attempt}`),
              ],
            },
            { name: "What", extra: "grow", cell: (job) => what(job) },
            { name: "Queue", cell: (job) => link(address(["jobs"], { queue: job.queue }), job.queue) },
            { name: "Enqueued", align: "right", extra: "moment-cell", cell: (job) => when(job.enqueued_at) },
            { name: "When", align: "right", extra: "moment-cell", cell: (job) => moment(job) },
          ],
        }),
        pager(context, found(context)),
      ),
    ];
  },
};

/** A page, or the first one after it that has any jobs: the API reads a few thousand jobs for each. @param {Record<string, string | number | null>} filter @param {string | null} before @param {AbortSignal} signal */
async function firstWithJobs(filter, before, signal) {
  let page = await get("jobs", { ...filter, before }, signal);
  for (let read = 1; read < MOST_PAGES && !page.items.length && page.next; read++)
    page = await get("jobs", { ...filter, before: page.next }, signal);
  return page;
}

/** The filter of an address as the API takes it: ages become instants. @param {URLSearchParams} query @returns {Record<string, string>} */
function asked(query) {
  /** @type {Record<string, string>} */
  const filter = {};
  for (const name of ["state", "view", ...TEXTS.map(([name]) => name)]) {
    const value = query.get(name);
    if (value !== null) filter[name] = value;
  }
  for (const [name] of TIMES) {
    const value = query.get(name);
    if (value) filter[name] = instantOf(value);
  }
  return filter;
}

/** An age ("2h") as an instant, to the minute, so that it is the same question for a while. @param {string} value */
function instantOf(value) {
  const age = /^(\d+)([smhd])$/.exec(value);
  if (!age) return Number.isNaN(Date.parse(value)) ? value : new Date(value).toISOString();
  const seconds = Number(age[1]) * { s: 1, m: 60, h: 3600, d: 86_400 }[/** @type {"s"|"m"|"h"|"d"} */ (age[2])];
  return new Date(Math.floor((format.now() - seconds * 1000) / 60_000) * 60_000).toISOString();
}

/** @param {Context} context */
function viewTabs({ route }) {
  const totals = live.current().overview?.totals;
  const rest = Object.fromEntries([...route.query].filter(([name]) => !["state", "view", "before"].includes(name)));
  const isNarrowed = Object.keys(rest).some((name) => name !== "order");
  const now = `${route.query.get("state") ?? ""} ${route.query.get("view") ?? ""}`;
  return tabs(
    "States",
    VIEWS.map(([name, query, count]) => {
      const many = totals && !isNarrowed ? count(totals) : NaN;
      return {
        name: name === "All" ? name : [icon(name.toLowerCase()), name],
        href: address(["jobs"], { ...rest, ...query }),
        isCurrent: now === `${query.state ?? ""} ${query.view ?? ""}`,
        count: Number.isFinite(many) ? many : null,
      };
    }),
  );
}

/** @param {Context} context */
function filters(context) {
  const { route, ui } = context;
  const value = (/** @type {string} */ name) => route.query.get(name) ?? "";
  const set = (/** @type {string} */ name) => (/** @type {string} */ text) => {
    ui.chosen = new Set();
    ui.trail = [];
    context.setQuery({ [name]: text || null, before: null });
  };
  const overview = live.current().overview;
  const known = /** @type {Record<string, string[]>} */ ({
    queue: overview?.queues.map((/** @type {any} */ queue) => queue.queue) ?? [],
    task: (ui.tasks?.items ?? []).map((/** @type {any} */ task) => task.task ?? task.name ?? task),
  });
  const rare = [...TEXTS.slice(SHOWN_FIRST).map(([name]) => name), ...TIMES.map(([name]) => name)];
  const isRareSet = rare.some((name) => route.query.has(name));
  const isOpen = ui.isOpen || isRareSet;
  const isSet = [...TEXTS, ...TIMES].some(([name]) => route.query.has(name));
  const field = ([name, label, hint] = ["", "", ""]) =>
    marked(text(label, value(name), hint, set(name), known[name]), value(name) !== "");
  return h(
    "form",
    {
      class: classes("filters", "foldable", isOpen && "is-open"),
      key: "filters",
      role: "search",
      "aria-label": "Filters",
      onsubmit: (/** @type {Event} */ event) => event.preventDefault(),
    },
    TEXTS.slice(0, SHOWN_FIRST)
      .filter(([name]) => name !== "text" || maySearchText(context.session))
      .map(field),
    isOpen && TEXTS.slice(SHOWN_FIRST).map(field),
    isOpen && TIMES.map(([name, label]) => select(label, value(name), ages(value(name)), set(name))),
    marked(
      select(
        "Order",
        value("order"),
        [
          ["", "newest first"],
          ["oldest", "oldest first"],
        ],
        set("order"),
      ),
      value("order") !== "",
    ),
    h(
      "div",
      { class: "filter-buttons", key: "buttons" },
      !isRareSet &&
        h(
          "button",
          { type: "button", key: "more", onclick: () => context.update({ isOpen: !isOpen }) },
          isOpen ? "Fewer filters" : "More filters",
        ),
      isSet &&
        h(
          "a",
          { class: "button", key: "clear", href: address(["jobs"], { state: value("state"), view: value("view") }) },
          "Clear filters",
        ),
    ),
  );
}

/** A field that stays in sight where there is little room, if something is set. @param {import("../dom.js").VElement} field @param {boolean} isSet */
function marked(field, isSet) {
  field.props.class = classes(field.props.class, isSet && "is-set");
  return field;
}

/** The ages to choose from, with the one in the address if it is another. @param {string} value @returns {[string, string][]} */
function ages(value) {
  return AGES.some(([each]) => each === value)
    ? AGES
    : [...AGES, [value, Number.isNaN(Date.parse(value)) ? value : format.instant(value)]];
}

/** What is done to those that are chosen, or to all that were found. @param {Context} context */
function bar(context) {
  const { ui, data, route } = context;
  if (!data.items.length) return null;
  const why = context.denied("operate");
  const after = () => {
    context.update({ chosen: new Set() });
    void context.refresh();
  };
  const ids = [...ui.chosen];
  const filter = asked(route.query);
  const actions = /** @type {import("../bulk.js").Action[]} */ (Object.keys(ACTIONS));
  const possible = ids.length ? actions : actions.filter((action) => suits(action, filter));
  return h(
    "div",
    { class: "bulk-bar", key: "bar" },
    h(
      "span",
      { class: "bulk-said" },
      ids.length ? h("b", null, `${ids.length} chosen`) : found(context),
      " ",
      held(context),
    ),
    ids.length > 0 &&
      h(
        "button",
        { type: "button", class: "quiet small", onclick: () => context.update({ chosen: new Set() }) },
        "Choose none",
      ),
    possible.map((action) => {
      const { verb } = ACTIONS[action];
      const label = ids.length ? verb : action === "run_now" ? "Run all now …" : `${verb} all …`;
      return button(
        label,
        {
          kind: action === "cancel" ? "small danger-quiet" : "small",
          why,
          name: ids.length ? `${verb} ${ids.length} chosen` : `${label.replace(" …", "")} that match the filter`,
        },
        () => void (ids.length ? changeChosen(action, ids, after) : changeAll(action, filter, after)),
      );
    }),
  );
}

/** Whether it can do anything to what is shown. @param {import("../bulk.js").Action} action @param {Record<string, string>} filter */
function suits(action, { state, view }) {
  if (action === "run_now") return view === "scheduled" || (!view && (!state || state === "waiting"));
  if (action === "cancel") return !state || state === "waiting" || state === "running";
  return !view && (!state || state === "failed" || state === "cancelled");
}

/** @param {Context} context */
function found({ data, page }) {
  if (page.isBusy) return "Searching …";
  if (!data.count) return null;
  return data.count.is_exact
    ? format.plural(data.count.count, "job")
    : `${format.count(data.count.count)} jobs or more`;
}

/** @param {any} job */
function what(job) {
  const payload = h(
    "span",
    { class: "mono payload", key: "payload" },
    job.payload === "{}" ? h("span", { class: "faint" }, "no payload") : job.payload,
  );
  const [limit, key] = drawOf(job.waits_for);
  return [
    payload,
    job.unreadable &&
      h("span", { class: "cell-below bad-text one-line", title: job.unreadable }, `cannot be read: ${job.unreadable}`),
    job.error &&
      h(
        "span",
        { class: "cell-below bad-text one-line", title: job.error.message },
        h("b", null, job.error.type),
        `: ${job.error.message}`,
      ),
    limit !== null &&
      job.state === "waiting" &&
      h(
        "span",
        { class: "cell-below one-line" },
        "waits for ",
        link(`${address(["limits", limit])}?${new URLSearchParams({ key })}`, limit, key && ` ${key}`),
      ),
  ];
}

/** @param {any} waitsFor @returns {[string, string] | [null, ""]} */
export function drawOf(waitsFor) {
  if (!waitsFor) return [null, ""];
  return Array.isArray(waitsFor) ? [waitsFor[0], waitsFor[1]] : [waitsFor.limit, waitsFor.key];
}

/** The instant that matters most of a job as it is. @param {any} job */
function moment(job) {
  if (job.finished_at) return ["ended ", when(job.finished_at)];
  if (job.state === "running") return ["for ", lasting(job.started_at)];
  if (jobState(job) === "throttled")
    return job.throttled_until ? ["limit opens ", countdown(job.throttled_until)] : "permit";
  if (jobState(job) === "scheduled") return ["due ", countdown(job.run_at)];
  return h("span", { class: "faint" }, "–");
}

/** @param {Context} context */
function nothing({ route, page, data }) {
  if (page.isBusy)
    return empty("Searching …", "A text, or a type of errors, is looked for in one job after the other.");
  const filter = asked(route.query);
  if (data.next) return empty("No matching jobs so far", "Only part of the jobs were read. Next goes on.");
  if (route.query.has("before"))
    return empty("No more jobs", [link(address(["jobs"], { ...filter }), "Back to the first page"), "."]);
  if (Object.keys(filter).length)
    return empty(
      "No job matches",
      ["Nothing is all that the filter says. ", link("jobs", "Show all jobs"), "."],
      command("jobs", "list", ...filterOptions(filter)),
    );
  return empty("No job yet", "Enqueue one from your code, or let the demonstration do it:", command("demo"));
}
