/** A queue: its jobs by state, what they did, how it is declared, its keys, tasks and limits, its last jobs and failures. */

import { loadSubject, spanTabs, subjectActivity } from "../activity.js";
import { path } from "../api.js";
import { purgeQueue } from "../bulk.js";
import { command } from "../commands.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { t, withElements, word } from "../language.js";
import { usedLimits } from "../limits/used.js";
import { badge, breakable, button, copyCommand, empty, facts, heading, link, panel } from "../parts.js";
import { queueToggle } from "../queue_toggle.js";
import { address } from "../router.js";
import { table } from "../table.js";
import { countedAgo, counting, lag } from "./overview.js";

/** The views of waiting jobs, and the other states. */
const VIEWS = ["ready", "throttled", "scheduled", "blocked"];
const COUNTED = ["running", ...VIEWS, "succeeded", "failed", "cancelled", "skipped"];

/** @type {import("../page.js").PageDefinition} */
export const queue = {
  title: ({ params }) => t("Queue {name}", { name: params.name }),
  every: 10_000,
  load: ({ route }, signal) => {
    const { name } = route.params;
    return loadSubject(path("queues", name), route, { queue: name }, signal);
  },
  view: (context) => {
    const { data, route } = context;
    const name = route.params.name;
    return [
      heading(name, {
        crumbs: [[t("Queues"), "queues"]],
        badges: data.queue?.paused_at && badge("paused"),
        actions: [
          spanTabs(route, ["queues", name]),
          copyCommand(command("queues", "show", name)),
          data.queue && queueToggle(context, data.queue),
          data.queue?.waiting > 0 &&
            button(
              t("Purge"),
              { icon: "cancelled", kind: "small danger-quiet", why: context.denied("operate"), name: t("Purge queue {name}", { name }) },
              () => void purgeQueue(name, () => void context.refresh()),
            ),
        ],
      }),
      jobCounts(data, name),
      subjectActivity(data, route, { queue: name }, {
        jobs: data.recent.next ? t("No jobs of this queue among the newest that were read.") : t("No jobs of this queue are kept."),
        failures: data.failed.next
          ? t("No failed jobs of this queue among the newest that were read.")
          : t("No failed jobs of this queue are kept."),
      }),
      h(
        "div",
        { class: "two", key: "declared" },
        data.declared && declaredQueue(data.declared),
        data.keys && fairKeys(name, data),
        panel(
          t("Tasks"),
          {},
          data.tasks.length > 0
            ? h(
                "ul",
                { class: "names" },
                data.tasks.map((/** @type {string} */ task) =>
                  h("li", { key: task }, link(address(["tasks", task]), breakable(task))),
                ),
              )
            : h("p", { class: "faint" }, t("This app declares no task for this queue.")),
        ),
        usedLimits(data.limits, t("The jobs of this queue use no limit that this app declares.")),
      ),
    ];
  },
};

/** @param {any} data @param {string} name */
function jobCounts(data, name) {
  if (!data.queue)
    return h(
      "div",
      { class: "panel", key: "counts" },
      data.counted_at === null
        ? counting()
        : empty(t("No jobs in this queue"), t("No job of this queue waits or runs, and the queue is not paused.")),
    );
  return panel(
    t("Jobs"),
    { hint: countedAgo(data) },
    h(
      "p",
      { class: "node-counts" },
      COUNTED.map((state) =>
        h(
          "a",
          { key: state, href: address(["jobs"], { queue: name, [VIEWS.includes(state) ? "view" : "state"]: state }) },
          badge(state, `${format.count(data.queue[state])} ${word(state)}`),
        ),
      ),
      h("span", { class: "faint" }, t("Lag"), " ", lag(data.queue)),
    ),
  );
}

/** What the app declares of the queue. @param {any} declared */
function declaredQueue(declared) {
  const { concurrency, fair_by, weights } = declared;
  /** @type {[string, import("../dom.js").Children][]} */
  const items = [
    [t("Slots per node"), concurrency === null ? t("by the kind of its tasks") : format.count(concurrency)],
  ];
  if (declared.global_concurrency !== null) items.push([t("Slots of all nodes"), format.count(declared.global_concurrency)]);
  if (declared.weight !== 1) items.push([t("Weight in shared slots"), format.count(declared.weight)]);
  items.push([
    t("Order"),
    fair_by.length
      ? withElements("keys take turns: {keys}", {
          keys: fair_by.map((/** @type {string} */ key, /** @type {number} */ at) => [at > 0 && " / ", h("code", { key: at }, key)]),
        })
      : t("as the jobs came"),
  ]);
  if (Object.keys(weights).length)
    items.push([
      t("Weights"),
      Object.entries(weights).map(([key, weight]) => h("span", { class: "chip", key }, key, h("b", { class: "num" }, String(weight)))),
    ]);
  if (declared.aging !== null) items.push([t("Aging"), format.duration(declared.aging)]);
  if (declared.max_backlog !== null) items.push([t("Most waiting jobs"), `${format.count(declared.max_backlog)} (${declared.when_full})`]);
  return panel(t("As declared"), {}, facts(items));
}

/** The keys of a fair queue with most waiting jobs. @param {string} name @param {any} data */
function fairKeys(name, { declared, keys }) {
  const shown = keys.keys.length;
  const hint = keys.is_exact
    ? shown < keys.count && t("{shown} of {count}", { shown, count: format.count(keys.count) })
    : t("of the first ones in line");
  // A key of two levels stands for many keys, by which jobs are not found.
  const isOne = declared.fair_by.length === 1;
  return panel(
    t("Keys with most waiting jobs"),
    { class: "bare", hint: hint || null },
    table({
      label: t("Keys with most waiting jobs"),
      rows: keys.keys,
      key: (each) => each.key,
      extra: "compact",
      empty: h("p", { class: "panel-note faint" }, t("No job waits for its turn.")),
      columns: [
        { name: t("Key"), cell: (each) => h("b", { class: "clamp", title: each.key }, format.keyName(each.key)) },
        {
          name: t("Waiting"),
          align: "right",
          cell: (each) =>
            isOne
              ? link(address(["jobs"], { state: "waiting", limit: `fair:${name}`, key: each.key }), format.count(each.waiting))
              : format.count(each.waiting),
        },
        { name: t("Weight"), align: "right", cell: (each) => format.count(each.weight) },
      ],
    }),
  );
}
