/** The list of jobs: filter them, and retry, cancel or run the selected or all matching ones. */

import { get, canSearchText, optional } from "../api.js";
import { ACTIONS, changeMatching, changeSelected } from "../bulk.js";
import { command, filterOptions } from "../commands.js";
import { classes, h } from "../dom.js";
import { select, text } from "../fields.js";
import * as format from "../format.js";
import { icon } from "../icons.js";
import { enqueueJob } from "../job/enqueue.js";
import * as live from "../live.js";
import { pager } from "../pager.js";
import {
  badge,
  bucketHref,
  button,
  copyCommand,
  countdown,
  empty,
  heading,
  frozenNote,
  jobLink,
  jobState,
  elapsed,
  link,
  tabs,
  when,
} from "../parts.js";
import { address } from "../router.js";
import { table } from "../table.js";

/** @typedef {import("../page.js").Context} Context */

const TEXT_FILTERS = /** @type {[string, string, string][]} */ ([
  ["queue", "Queue", "any"],
  ["task", "Task", "any"],
  ["limit", "Limit", "any"],
  ["key", "Limit key", "tenant:42"],
  ["text", "Payload text", "part of the JSON"],
  ["tag", "Tag", "vip"],
  ["header", "Header", "source=api"],
  ["annotation", "Annotation", "invoice=42"],
  ["error", "Error type", "TimeoutError"],
  ["unique_key", "Unique key", ""],
  ["schedule", "Schedule", ""],
  ["batch", "Batch", "id"],
  ["node", "Node", "id"],
]);
const TIME_FILTERS = /** @type {[string, string][]} */ ([
  ["enqueued_after", "Enqueued since"],
  ["enqueued_before", "Enqueued before"],
  ["finished_after", "Finished since"],
  ["finished_before", "Finished before"],
]);
/** The first filters are always visible; the others open with "More filters". */
const MAIN_FILTERS = 5;
/** The most empty pages that are read in a row to find one with jobs. */
const MAX_EMPTY_PAGES = 40;
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
  ui: () => ({ selected: new Set(), isOpen: false }),
  // On a busy store rows would move away before they can be clicked, and selected ones would leave the page.
  isFrozen: (context) => context.ui.selected.size > 0 || context.isListInUse,
  load: async ({ route, ui }, signal) => {
    const filter = filterOf(route.query);
    const query = { ...filter, order: route.query.get("order"), count: 50 };
    const [page, count, tasks] = await Promise.all([
      firstWithJobs(query, route.query.get("before"), signal),
      optional(get("jobs/count", filter, signal)),
      ui.tasks ?? optional(get("tasks", {}, signal)),
    ]);
    ui.tasks = tasks;
    // Deselect jobs that have left the page, so that no action changes a job that is not shown.
    ui.selected = new Set(
      page.items.map((/** @type {any} */ job) => job.id).filter((/** @type {string} */ id) => ui.selected.has(id)),
    );
    return { ...page, count };
  },
  view: (context) => {
    const { data, route, ui } = context;
    return [
      heading("Jobs", {
        actions: [
          button(
            "Enqueue",
            { icon: "bolt", why: context.denied("operate") },
            () => void enqueueJob(route.query.get("task") ?? ""),
          ),
          copyCommand(command("jobs", "list", ...filterOptions(filterOf(route.query)))),
        ],
      }),
      viewTabs(context),
      filters(context),
      h(
        "section",
        { class: "panel bare", key: "list", "aria-label": "Matching jobs" },
        bulkBar(context),
        table({
          label: "Jobs",
          rows: data.items,
          key: (job) => job.id,
          selected: context.denied("operate") ? undefined : ui.selected,
          onSelect: (selected) => context.update({ selected }),
          empty: emptyList(context),
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
            { name: "Payload", extra: "grow", cell: (job) => payloadCell(job) },
            { name: "Queue", cell: (job) => link(address(["jobs"], { queue: job.queue }), job.queue) },
            { name: "Enqueued", align: "right", extra: "time-cell", cell: (job) => when(job.enqueued_at) },
            { name: "Timing", align: "right", extra: "time-cell", cell: (job) => timing(job) },
          ],
        }),
        pager(context, countLabel(context)),
      ),
    ];
  },
};

/** Return the page at a cursor, or the first one after it with jobs: the API reads a few thousand jobs per page. @param {Record<string, string | number | null>} filter @param {string | null} before @param {AbortSignal} signal */
async function firstWithJobs(filter, before, signal) {
  let page = await get("jobs", { ...filter, before }, signal);
  for (let read = 1; read < MAX_EMPTY_PAGES && !page.items.length && page.next; read++)
    page = await get("jobs", { ...filter, before: page.next }, signal);
  return page;
}

/** The filter of an address in the form of the API: ages become instants. @param {URLSearchParams} query @returns {Record<string, string>} */
function filterOf(query) {
  /** @type {Record<string, string>} */
  const filter = {};
  for (const name of ["state", "view", ...TEXT_FILTERS.map(([name]) => name)]) {
    const value = query.get(name);
    if (value !== null) filter[name] = value;
  }
  for (const [name] of TIME_FILTERS) {
    const value = query.get(name);
    if (value) filter[name] = instantOf(value);
  }
  return filter;
}

/** An age ("2h") as an instant, rounded to the minute so that the query stays the same for a while. @param {string} value */
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
  const isFiltered = Object.keys(rest).some((name) => name !== "order");
  const now = `${route.query.get("state") ?? ""} ${route.query.get("view") ?? ""}`;
  return tabs(
    "States",
    VIEWS.map(([name, query, count]) => {
      const number = totals && !isFiltered ? count(totals) : NaN;
      return {
        name: name === "All" ? name : [icon(name.toLowerCase()), name],
        href: address(["jobs"], { ...rest, ...query }),
        isCurrent: now === `${query.state ?? ""} ${query.view ?? ""}`,
        count: Number.isFinite(number) ? number : null,
      };
    }),
  );
}

/** @param {Context} context */
function filters(context) {
  const { route, ui } = context;
  const value = (/** @type {string} */ name) => route.query.get(name) ?? "";
  const set = (/** @type {string} */ name) => (/** @type {string} */ text) => {
    ui.selected = new Set();
    ui.trail = [];
    context.setQuery({ [name]: text || null, before: null });
  };
  const overview = live.current().overview;
  const suggestions = /** @type {Record<string, string[]>} */ ({
    queue: overview?.queues.map((/** @type {any} */ queue) => queue.queue) ?? [],
    task: (ui.tasks?.items ?? []).map((/** @type {any} */ task) => task.task ?? task.name ?? task),
  });
  const moreFilters = [...TEXT_FILTERS.slice(MAIN_FILTERS).map(([name]) => name), ...TIME_FILTERS.map(([name]) => name)];
  const isMoreSet = moreFilters.some((name) => route.query.has(name));
  const isOpen = ui.isOpen || isMoreSet;
  const isSet = [...TEXT_FILTERS, ...TIME_FILTERS].some(([name]) => route.query.has(name));
  const field = ([name, label, hint] = ["", "", ""]) =>
    markIfSet(text(label, value(name), hint, set(name), suggestions[name]), value(name) !== "");
  return h(
    "form",
    {
      class: classes("filters", "foldable", isOpen && "is-open"),
      key: "filters",
      role: "search",
      "aria-label": "Filters",
      onsubmit: (/** @type {Event} */ event) => event.preventDefault(),
    },
    TEXT_FILTERS.slice(0, MAIN_FILTERS)
      .filter(([name]) => name !== "text" || canSearchText(context.session))
      .map(field),
    isOpen && TEXT_FILTERS.slice(MAIN_FILTERS).map(field),
    isOpen && TIME_FILTERS.map(([name, label]) => select(label, value(name), ages(value(name)), set(name))),
    markIfSet(
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
      !isMoreSet &&
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

/** Mark a field that has a value: it stays visible on a narrow screen. @param {import("../dom.js").VElement} field @param {boolean} isSet */
function markIfSet(field, isSet) {
  field.props.class = classes(field.props.class, isSet && "is-set");
  return field;
}

/** The selectable ages, and the value in the address if it is another one. @param {string} value @returns {[string, string][]} */
function ages(value) {
  return AGES.some(([each]) => each === value)
    ? AGES
    : [...AGES, [value, Number.isNaN(Date.parse(value)) ? value : format.instant(value)]];
}

/** The actions for the selected jobs, or for all matching ones. @param {Context} context */
function bulkBar(context) {
  const { ui, data, route } = context;
  if (!data.items.length) return null;
  const why = context.denied("operate");
  const after = () => {
    context.update({ selected: new Set() });
    void context.refresh();
  };
  const ids = [...ui.selected];
  const filter = filterOf(route.query);
  const actions = /** @type {import("../bulk.js").Action[]} */ (Object.keys(ACTIONS));
  const available = ids.length ? actions : actions.filter((action) => canApply(action, filter));
  return h(
    "div",
    { class: "bulk-bar", key: "bar" },
    h(
      "span",
      { class: "bulk-count" },
      ids.length ? h("b", null, `${ids.length} selected`) : countLabel(context),
      " ",
      frozenNote(context),
    ),
    ids.length > 0 &&
      h(
        "button",
        { type: "button", class: "quiet small", onclick: () => context.update({ selected: new Set() }) },
        "Clear selection",
      ),
    available.map((action) => {
      const { verb } = ACTIONS[action];
      const label = ids.length ? verb : action === "run_now" ? "Run all now …" : `${verb} all …`;
      return button(
        label,
        {
          kind: action === "cancel" ? "small danger-quiet" : "small",
          why,
          name: ids.length ? `${verb} ${ids.length} selected` : `${label.replace(" …", "")} matching the filter`,
        },
        () => void (ids.length ? changeSelected(action, ids, after) : changeMatching(action, filter, after)),
      );
    }),
  );
}

/** Whether an action can change any of the matching jobs. @param {import("../bulk.js").Action} action @param {Record<string, string>} filter */
function canApply(action, { state, view }) {
  if (action === "run_now") return view === "scheduled" || (!view && (!state || state === "waiting"));
  if (action === "cancel") return !state || state === "waiting" || state === "running";
  return !view && (!state || state === "failed" || state === "cancelled");
}

/** @param {Context} context */
function countLabel({ data, page }) {
  if (page.isBusy) return "Searching …";
  if (!data.count) return null;
  return data.count.is_exact
    ? format.plural(data.count.count, "job")
    : `at least ${format.plural(data.count.count, "job")}`;
}

/** @param {any} job */
function payloadCell(job) {
  const payload = h(
    "span",
    { class: "mono payload", key: "payload" },
    job.payload === "{}" ? h("span", { class: "faint" }, "no payload") : job.payload,
  );
  const draw = job.waits_for;
  return [
    payload,
    job.tags.length > 0 &&
      h(
        "span",
        { class: "cell-below one-line", key: "tags" },
        job.tags.map((/** @type {string} */ tag) => [link(address(["jobs"], { tag }), tag), " "]),
      ),
    job.unreadable &&
      h("span", { class: "cell-below bad-text one-line", title: job.unreadable }, `cannot be read: ${job.unreadable}`),
    job.error &&
      h(
        "span",
        { class: "cell-below bad-text one-line", title: job.error.message },
        h("b", null, job.error.type),
        `: ${job.error.message}`,
      ),
    draw &&
      job.state === "waiting" &&
      h(
        "span",
        { class: "cell-below one-line" },
        "waiting for ",
        link(bucketHref(draw.limit, draw.key), draw.limit, draw.key && ` ${draw.key}`),
      ),
  ];
}

/** The most relevant time of a job in its state. @param {any} job */
function timing(job) {
  if (job.finished_at) return ["finished ", when(job.finished_at)];
  if (job.state === "running") return ["running for ", elapsed(job.started_at)];
  if (jobState(job) === "throttled") {
    if (job.waits_for.is_paused) return "limit is paused";
    return job.throttled_until ? ["limit opens ", countdown(job.throttled_until)] : "waiting for a permit";
  }
  if (jobState(job) === "scheduled") return ["due ", countdown(job.run_at)];
  return h("span", { class: "faint" }, "–");
}

/** @param {Context} context */
function emptyList({ route, page, data }) {
  if (page.isBusy)
    return empty("Searching …", "A search by text or error type reads one job after the other.");
  const filter = filterOf(route.query);
  if (data.next) return empty("No matching jobs so far", "Only some of the jobs were read. Press Next to continue the search.");
  if (route.query.has("before"))
    return empty("No more jobs", [link(address(["jobs"], { ...filter }), "Back to the first page"), "."]);
  if (Object.keys(filter).length)
    return empty(
      "No matching jobs",
      [link("jobs", "Show all jobs"), "."],
      command("jobs", "list", ...filterOptions(filter)),
    );
  return empty("No jobs yet", "Enqueue one from your code, or try the demo:", command("demo"));
}
