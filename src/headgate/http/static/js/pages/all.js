/** All pages by their names in the router. */

import { audit } from "./audit.js";
import { batch } from "./batch.js";
import { batches } from "./batches.js";
import { failure } from "./failure.js";
import { failures } from "./failures.js";
import { job } from "./job.js";
import { jobs } from "./jobs.js";
import { key } from "./key.js";
import { limit } from "./limit.js";
import { limits } from "./limits.js";
import { missing } from "./missing.js";
import { nodes } from "./nodes.js";
import { overview } from "./overview.js";
import { queue } from "./queue.js";
import { queues } from "./queues.js";
import { schedule } from "./schedule.js";
import { schedules } from "./schedules.js";
import { task } from "./task.js";
import { tasks } from "./tasks.js";

/** @type {Record<string, import("../page.js").PageDefinition>} */
export const definitions = {
  overview,
  queues,
  queue,
  tasks,
  task,
  jobs,
  job,
  limits,
  key,
  limit,
  schedules,
  schedule,
  nodes,
  audit,
  batches,
  batch,
  failures,
  failure,
  missing,
};
