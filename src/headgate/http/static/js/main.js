/** Where it begins: the frame of the page, and the page that the address names. */

import "./time_element.js";
import "./charts.js";
import { session as askSession } from "./api.js";
import { setNow } from "./format.js";
import * as live from "./live.js";
import { Page } from "./page.js";
import { definitions } from "./pages/all.js";
import { onChoice } from "./prefs.js";
import { start } from "./router.js";
import { Shell } from "./shell.js";

/** @type {Page | null} */
let page = null;

/** @param {string} name @param {Record<string, string>} params */
function identity(name, params) {
  return JSON.stringify([name, params]);
}

async function begin() {
  const shell = new Shell(document.body);
  try {
    shell.session = await askSession();
  } catch (error) {
    shell.fail(error, () => location.reload());
    return;
  }
  setNow(shell.session.now);
  const session = shell.session;
  live.start();
  start((route, isNew) => {
    const definition = definitions[route.page];
    const title = definition.title(route);
    document.title = `${title} · ${session.title}`;
    shell.show(route);
    if (page && identity(page.route.page, page.route.params) === identity(route.page, route.params)) {
      void page.move(route);
      return;
    }
    const isFirst = page === null;
    page?.leave();
    const place = shell.newPlace();
    page = new Page(definition, route, place, session);
    if (!isFirst && isNew) {
      scrollTo(0, 0);
      place.focus({ preventScroll: true });
    }
  });
  onChoice(() => {
    page?.show();
    if (live.current().state !== "paused") void page?.refresh();
  });
}

void begin();
