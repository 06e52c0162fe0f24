/** The icons. Each state has its own shape, so that colour is never the only difference. */

import { h } from "./dom.js";

/** On a grid of 16 by 16. @type {Record<string, string>} */
const PATHS = {
  waiting: "M8 2.500a5.500 5.500 0 1 0 0 11a5.500 5.500 0 0 0 0-11z",
  ready: "M5 3.500l7 4.500l-7 4.500z",
  throttled: "M3.500 2.500v11M12.500 2.500v11M6 5h4v3.500h-4zM6 11.500q1-.8 2 0t2 0",
  scheduled: "M8 2.500a5.500 5.500 0 1 0 0 11a5.500 5.500 0 0 0 0-11zM8 5v3l2.200 1.500",
  blocked: "M4 7.500h8v6h-8zM5.500 7.500v-2a2.500 2.500 0 0 1 5 0v2",
  running: "M13.500 8a5.500 5.500 0 1 1-3-4.900M8 8l4-4.500",
  succeeded: "M3 8.500l3.500 3.500l6.500-7.500",
  failed: "M4 4l8 8M12 4l-8 8",
  cancelled: "M8 2.500a5.500 5.500 0 1 0 0 11a5.500 5.500 0 0 0 0-11zM4.200 4.200l7.600 7.600",
  skipped: "M2.500 4.500l4.500 3.500l-4.500 3.500M8 4.500l4.500 3.500l-4.500 3.500",
  paused: "M5.500 3.500v9M10.500 3.500v9",
  penalized: "M8 2.500l6 11h-12zM8 6.500v3M8 11.500v.2",
  warning: "M8 2.500l6 11h-12zM8 6.500v3M8 11.500v.2",
  info: "M8 2.500a5.500 5.500 0 1 0 0 11a5.500 5.500 0 0 0 0-11zM8 7.500v3.500M8 5v.2",
  alive: "M2 8h3l1.500-4l3 8l1.500-4h3",
  silent: "M2 8h12M8 5v-.2",
  gone: "M4 4l8 8M12 4l-8 8",
  overview: "M2.500 9l4-4l3 3l4-4.500M2.500 13.500h11",
  queues: "M3 4h10M3 8h10M3 12h6",
  tasks: "M2.500 4.500l1.200 1.200l2-2.400M8.500 4.500h5M2.500 9.500l1.200 1.200l2-2.400M8.500 9.500h5",
  batches: "M2.500 5.500l5.500-3l5.500 3l-5.500 3zM2.500 8.500l5.500 3l5.500-3",
  jobs: "M3.500 3h9v10h-9zM6 6.500h4M6 9.500h4",
  failures: "M8 2.500l6 11h-12zM8 6.500v3M8 11.500v.2",
  limits: "M2.500 11a5.500 5.500 0 0 1 11 0M8 11l2.500-4",
  schedules: "M3 4.500h10v9h-10zM3 7h10M5.500 2.500v3M10.500 2.500v3",
  nodes: "M3 3h10v4h-10zM3 9h10v4h-10zM5.500 5v.1M5.500 11v.1",
  audit: "M8 2l5 2v4q0 4-5 6q-5-2-5-6v-4zM5.800 8l1.700 1.700l3-3.400",
  search: "M7 2.500a4.500 4.500 0 1 0 0 9a4.500 4.500 0 0 0 0-9zM10.500 10.500l3.500 3.500",
  menu: "M2.500 4.500h11M2.500 8h11M2.500 11.500h11",
  close: "M4 4l8 8M12 4l-8 8",
  copy: "M5.500 5.500h8v8h-8zM10.500 5.500v-3h-8v8h3",
  terminal: "M2.500 3.500h11v9h-11zM5 6.500l2 1.500l-2 1.500M8.500 10h2.500",
  sun: "M8 5.500a2.500 2.500 0 1 0 0 5a2.500 2.500 0 0 0 0-5zM8 1.500v1.500M8 13v1.500M1.500 8h1.500M13 8h1.500M3.400 3.400l1 1M11.600 11.600l1 1M12.600 3.400l-1 1M4.400 11.600l-1 1",
  moon: "M13 9.500a5.500 5.500 0 1 1-6.500-6.500a4.500 4.500 0 0 0 6.500 6.500z",
  auto: "M8 2.500a5.500 5.500 0 1 0 0 11a5.500 5.500 0 0 0 0-11zM8 2.500v11M10 4.500v7M12 6v4",
  chevron: "M6 4l4 4l-4 4",
  left: "M10 4l-4 4l4 4",
  up: "M4 10l4-4l4 4",
  retry: "M13 8a5 5 0 1 1-1.500-3.600M13.200 2v3h-3",
  help: "M6 6a2 2 0 1 1 2.800 1.900q-.8.400-.8 1.300M8 11.500v.2M8 1.800a6.200 6.200 0 1 0 0 12.400a6.200 6.200 0 0 0 0-12.400z",
  skip: "M4 4l5 4l-5 4zM12 4v8",
  bolt: "M9 2l-5 7h4l-1 5l5-7h-4z",
};

/** An icon, hidden from screen readers: the text next to it carries the meaning. @param {string} name @param {string} [extra] */
export function icon(name, extra = "") {
  return h(
    "svg",
    { class: `icon ${extra}`, viewBox: "0 0 16 16", "aria-hidden": "true", focusable: "false" },
    h("path", { d: PATHS[name] ?? PATHS.info }),
  );
}
