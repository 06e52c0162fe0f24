/** The list of jobs: filter them, and change the selected or all matching ones. */

import { get, canSearchText, optional } from "../api.js";
import { ACTIONS, changeMatching, changeSelected, phrase } from "../bulk.js";
import { command, filterOptions } from "../commands.js";
import { classes, h } from "../dom.js";
import { select, text } from "../fields.js";
import * as format from "../format.js";
import { icon } from "../icons.js";
import { enqueueJob } from "../job/enqueue.js";
import { firstWithJobs, isSearchError } from "../job/first_page.js";
import { errorLine } from "../job/short_list.js";
import { t, withElements, word } from "../language.js";
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
import { declared, table } from "../table.js";

/** @typedef {import("../page.js").Context} Context */

const TEXT_FILTERS = /** @type {[string, string, string][]} */ ([
  ["queue", t("Queue"), t("any")],
  ["task", t("Task"), t("any")],
  ["limit", t("Limit"), t("any")],
  ["key", t("Limit key"), "tenant:42"],
  ["text", t("Payload text"), t("part of the JSON")],
  ["tag", t("Tag"), "vip"],
  ["header", t("Header"), "source=api"],
  ["annotation", t("Annotation"), "invoice=42"],
  ["error", t("Error type"), "TimeoutError"],
  ["unique_key", t("Unique key"), ""],
  ["schedule", t("Schedule"), ""],
  ["batch", t("Batch"), "id"],
  ["node", t("Node"), "id"],
]);
const TIME_FILTERS = /** @type {[string, string][]} */ ([
  ["enqueued_after", t("Enqueued since")],
  ["enqueued_before", t("Enqueued before")],
  ["finished_after", t("Finished since")],
  ["finished_before", t("Finished before")],
]);
/** The first filters are always visible; the others open with "More filters". */
const MAIN_FILTERS = 5;
const AGES = /** @type {[string, string][]} */ ([
  ["", t("any time")],
  ["5m", t("5 min ago")],
  ["15m", t("15 min ago")],
  ["1h", t("1 h ago")],
  ["6h", t("6 h ago")],
  ["24h", t("24 h ago")],
  ["7d", t("7 days ago")],
]);

const ALL = t("All");

/** @type {[string, Record<string, string>, (totals: any) => number][]} */
const VIEWS = [
  [ALL, {}, () => NaN],
  [t("Ready"), { view: "ready" }, (totals) => totals.ready],
  [t("Throttled"), { view: "throttled" }, (totals) => totals.throttled],
  [t("Scheduled"), { view: "scheduled" }, (totals) => totals.scheduled],
  [t("Blocked"), { view: "blocked" }, (totals) => totals.blocked],
  [t("Running"), { state: "running" }, (totals) => totals.running],
  [t("Succeeded"), { state: "succeeded" }, (totals) => totals.succeeded],
  [t("Failed"), { state: "failed" }, (totals) => totals.failed],
  [t("Cancelled"), { state: "cancelled" }, (totals) => totals.cancelled],
  [t("Skipped"), { state: "skipped" }, (totals) => totals.skipped],
];

/** @type {import("../page.js").PageDefinition} */
export const jobs = {
  title: ({ query }) => {
    const view = query.get("view") ?? query.get("state");
    return view ? t("Jobs: {state}", { state: word(view) }) : t("Jobs");
  },
  ui: () => ({ selected: new Set(), isOpen: false }),
  // On a busy store rows would move away before they can be clicked, and selected ones would leave the page.
  isFrozen: (context) => context.ui.selected.size > 0 || context.isListInUse,
  load: async ({ route, ui }, signal) => {
    const filter = filterOf(route.query);
    const query = { ...filter, order: route.query.get("order"), count: 50 };
    const [page, count, tasks] = await Promise.all([
      firstWithJobs(query, route.query.get("before"), signal),
      countMatching(filter, signal),
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
      heading(t("Jobs"), {
        actions: [
          button(
            t("Enqueue"),
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
        { class: "panel bare", key: "list", "aria-label": t("Matching jobs") },
        bulkBar(context),
        table({
          label: t("Jobs"),
          extra: "dense",
          rows: data.items,
          key: (job) => job.id,
          selected: context.denied("operate") ? undefined : ui.selected,
          onSelect: (selected) => context.update({ selected }),
          empty: emptyList(context),
          columns: declared("jobs", data.items, {
            id: {
              extra: "job-cell",
              cell: (job) => [jobLink(job.id), h("b", { class: "one-line", title: job.task }, job.task)],
            },
            state: {
              extra: "state-cell",
              cell: (job) => [
                badge(jobState(job)),
                job.attempt > 1 && h("span", { class: "attempt faint" }, format.attempt(job.attempt, 0)),
              ],
            },
            payload: { extra: "payload-cell grow", cell: payloadCell },
            queue: {
              extra: "queue-cell",
              cell: (job) =>
                h("span", { class: "one-line", title: job.queue }, link(address(["jobs"], { queue: job.queue }), job.queue)),
            },
            enqueued_at: { extra: "enqueued-cell time-cell" },
            run_at: { extra: "timing-cell time-cell", cell: timing },
          }),
        }),
        pager(context, coverage(context) ?? countLabel(context)),
      ),
    ];
  },
};

/** Count the matching jobs; null if that takes too long. @param {Record<string, string>} filter @param {AbortSignal} signal */
async function countMatching(filter, signal) {
  try {
    return await optional(get("jobs/count", filter, signal));
  } catch (error) {
    if (isSearchError(error)) return null;
    throw error;
  }
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
  const isFiltered = hasFilter(route.query);
  const now = `${route.query.get("state") ?? ""} ${route.query.get("view") ?? ""}`;
  return tabs(
    t("States"),
    VIEWS.map(([name, query, count]) => {
      const number = totals && !isFiltered ? count(totals) : NaN;
      return {
        name: name === ALL ? name : [icon(query.view ?? query.state), name],
        href: address(["jobs"], { ...rest, ...query }),
        isCurrent: now === `${query.state ?? ""} ${query.view ?? ""}`,
        count: Number.isFinite(number) ? number : null,
      };
    }),
  );
}

/** Whether an address has a filter besides the state. @param {URLSearchParams} query */
function hasFilter(query) {
  return [...query.keys()].some((name) => !["state", "view", "before", "order"].includes(name));
}

/** @param {Context} context */
function filters(context) {
  const { route, ui } = context;
  const value = (/** @type {string} */ name) => route.query.get(name) ?? "";
  const set = (/** @type {string} */ name) => (/** @type {string} */ text) => {
    ui.selected = new Set();
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
      "aria-label": t("Filters"),
      onsubmit: (/** @type {Event} */ event) => event.preventDefault(),
    },
    TEXT_FILTERS.slice(0, MAIN_FILTERS)
      .filter(([name]) => name !== "text" || canSearchText(context.session))
      .map(field),
    isOpen && TEXT_FILTERS.slice(MAIN_FILTERS).map(field),
    isOpen && TIME_FILTERS.map(([name, label]) => select(label, value(name), ages(value(name)), set(name))),
    markIfSet(
      select(
        t("Order"),
        value("order"),
        [
          ["", t("newest first")],
          ["oldest", t("oldest first")],
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
          isOpen ? t("Fewer filters") : t("More filters"),
        ),
      isSet &&
        h(
          "a",
          { class: "button", key: "clear", href: address(["jobs"], { state: value("state"), view: value("view") }) },
          t("Clear filters"),
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
  const selected = data.items.filter((/** @type {any} */ job) => ui.selected.has(job.id));
  const available = actions.filter((action) =>
    ids.length ? selected.some((/** @type {any} */ job) => canApply(action, filterOfOne(job))) : canApply(action, filter),
  );
  return h(
    "div",
    { class: "bulk-bar", key: "bar" },
    h(
      "span",
      { class: "bulk-count" },
      ids.length ? h("b", null, t("{count} selected", { count: ids.length })) : countLabel(context),
      " ",
      frozenNote(context),
    ),
    ids.length > 0 &&
      h(
        "button",
        { type: "button", class: "quiet small", onclick: () => context.update({ selected: new Set() }) },
        t("Clear selection"),
      ),
    available.map((action) => {
      const { verb, needs } = ACTIONS[action];
      const label = ids.length ? verb : `${phrase(action, t("all"))} …`;
      return button(
        label,
        {
          kind: ["cancel", "delete"].includes(action) ? "small danger-quiet" : "small",
          why: needs ? context.denied(needs) : why,
          name: ids.length ? t("{verb} {count} selected", { verb, count: ids.length }) : t("{action} matching the filter", { action: label.replace(" …", "") }),
        },
        () => void (ids.length ? changeSelected(action, ids, after) : changeMatching(action, filter, after)),
      );
    }),
  );
}

/** The filter that this job matches. @param {any} job @returns {Record<string, string>} */
function filterOfOne(job) {
  return job.state === "waiting" ? { view: jobState(job) } : { state: job.state };
}

/** Whether an action can change any of the matching jobs. @param {import("../bulk.js").Action} action @param {Record<string, string>} filter */
function canApply(action, { state, view }) {
  if (action === "run_now") return view === "scheduled" || (!view && (!state || state === "waiting"));
  if (action === "cancel") return !state || state === "waiting" || state === "running";
  if (action === "reschedule") return !state || state === "waiting";
  if (action === "delete") return !view && ["succeeded", "failed", "cancelled", "skipped"].includes(state);
  return !view && (!state || state === "failed" || state === "cancelled");
}

/** How many jobs match. @param {Context} context */
function countLabel({ data, page, route }) {
  if (page.isBusy) return t("Searching …");
  if (data.count?.is_exact) return format.plural(data.count.count, "job");
  if (!data.next && !route.query.has("before")) return format.plural(data.items.length, "job");
  const total = hasFilter(route.query) ? null : totalOf(route.query);
  if (total !== null) return format.plural(total, "job");
  // The count reads the newest jobs only; the list may be of older ones.
  const known = Math.max(data.count?.count ?? 0, data.items.length);
  return known > 0 ? t("at least {jobs}", { jobs: format.plural(known, "job") }) : null;
}

/** How many jobs of a state there are, as counted for the overview; null if they are not counted yet. @param {URLSearchParams} query */
function totalOf(query) {
  const totals = live.current().overview?.totals;
  const name = query.get("view") ?? query.get("state");
  const counts = (name ? [name] : ["waiting", "running", "succeeded", "failed", "cancelled", "skipped"]).map((each) => totals?.[each]);
  return counts.every(Number.isFinite) ? counts.reduce((sum, count) => sum + count, 0) : null;
}

/** Which jobs were searched, if the page ended before all of them or itself were; otherwise null. @param {Context} context */
function coverage({ data, page, route }) {
  if (page.isBusy || !data.read) return null;
  const jobs = format.plural(data.read, "job");
  const time = data.reached ? format.clock(data.reached) : "–";
  if (route.query.has("before")) return t("searched {jobs} for this page, the last one of {time}", { jobs, time });
  return route.query.get("order") === "oldest"
    ? t("searched the oldest {jobs}, up to {time}", { jobs, time })
    : t("searched the newest {jobs}, back to {time}", { jobs, time });
}

/** @param {any} job */
function payloadCell(job) {
  const payload = h(
    "span",
    { class: "mono payload", key: "payload", title: job.payload },
    job.payload === "{}" ? h("span", { class: "faint" }, t("no payload")) : job.payload,
  );
  const awaited = job.state === "waiting" && job.waits_for;
  return [
    h(
      "span",
      { class: "payload-line", key: "line" },
      payload,
      (job.tags.length > 0 || awaited) &&
        h(
          "span",
          { class: "payload-more", key: "more" },
          awaited &&
            withElements("waiting for {limit}", {
              limit: link(bucketHref(awaited.limit, awaited.key), awaited.limit, awaited.key && ` ${awaited.key}`),
            }),
          job.tags.map((/** @type {string} */ tag) => [" ", link(address(["jobs"], { tag }), tag)]),
        ),
    ),
    job.unreadable &&
      h("span", { class: "cell-below bad-text one-line", key: "unreadable", title: job.unreadable }, t("cannot be read: {reason}", { reason: job.unreadable })),
    errorLine(job),
  ];
}

/** The most relevant time of a job in its state. @param {any} job */
function timing(job) {
  if (job.finished_at) return withElements("finished {time}", { time: when(job.finished_at) });
  if (job.state === "running") return withElements("running for {time}", { time: elapsed(job.started_at) });
  if (jobState(job) === "throttled") {
    if (job.waits_for.is_paused) return t("limit is paused");
    return job.throttled_until ? withElements("limit opens {time}", { time: countdown(job.throttled_until) }) : t("waiting for a permit");
  }
  if (jobState(job) === "scheduled") return withElements("due {time}", { time: countdown(job.run_at) });
  return [
    h("span", { class: "faint wide-only", key: "none" }, "–"),
    h("span", { class: "narrow-only", key: "enqueued" }, withElements("enqueued {time}", { time: when(job.enqueued_at) })),
  ];
}

/** @param {Context} context */
function emptyList(context) {
  const { route, page, data } = context;
  if (page.isBusy)
    return empty(t("Searching …"), t("A search by text or error type reads one job after the other."));
  const filter = filterOf(route.query);
  if (data.next) {
    const covered = coverage(context) ?? "";
    const text = covered && `${covered.charAt(0).toUpperCase()}${covered.slice(1)}. `;
    return empty(t("No matching jobs so far"), text + t("Press Next to continue the search."));
  }
  if (route.query.has("before"))
    return empty(t("No more jobs"), [link(address(["jobs"], { ...filter }), t("Back to the first page")), "."]);
  if (Object.keys(filter).length)
    return empty(
      t("No matching jobs"),
      [link("jobs", t("Show all jobs")), "."],
      command("jobs", "list", ...filterOptions(filter)),
    );
  return empty(t("No jobs yet"), t("Enqueue one from your code, or try the demo, which has a store of its own:"), command("demo"));
}
