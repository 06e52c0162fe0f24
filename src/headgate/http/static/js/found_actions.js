/** What the search box offers to do with a queue or a key of a limit that it has found. */

import { get, messageOf, path } from "./api.js";
import { purgeQueue } from "./bulk.js";
import * as format from "./format.js";
import { t } from "./language.js";
import { pauseLimit, resumeLimit } from "./limits/actions.js";
import { pauseQueue, resumeQueue } from "./queue_toggle.js";
import { toast } from "./toasts.js";

/** @typedef {import("./page.js").Context} Context */

/** The actions that the user may do; each asks first, as on its page. @param {Context} context @param {any} found */
export function actionsOn(context, { kind, name, limit, is_paused: isPaused }) {
  if (kind === "queue" && !context.denied("operate"))
    return [
      isPaused
        ? { name: t("Resume queue {name}", { name }), act: () => void resumeQueue(context, name) }
        : { name: t("Pause queue {name}", { name }), act: () => void pauseFoundQueue(context, name) },
      { name: t("Purge queue {name}", { name }), act: () => void purgeQueue(name, () => void context.refresh()) },
    ];
  if (kind === "key" && !context.denied("admin")) {
    const names = { name: limit, key: format.keyName(name) };
    return [
      isPaused
        ? { name: t("Resume {name} for key {key}", names), act: () => void resumeLimit(context, limit, name) }
        : { name: t("Pause {name} for key {key}", names), act: () => void pauseLimit(context, limit, name) },
    ];
  }
  return [];
}

/** @param {Context} context @param {string} name */
async function pauseFoundQueue(context, name) {
  try {
    const { queue } = await get(path("queues", name));
    await pauseQueue(context, queue ?? { queue: name, running: 0, waiting: 0 });
  } catch (error) {
    toast(messageOf(error), "bad");
  }
}
