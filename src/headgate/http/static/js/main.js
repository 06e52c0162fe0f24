/** The entry point: draws the frame, then the page for the current address. */

import "./time_element.js";
import "./charts.js";
import { session as fetchSession } from "./api.js";
import { setNow } from "./format.js";
import * as live from "./live.js";
import { Page } from "./page.js";
import { definitions } from "./pages/all.js";
import { onPreferenceChange } from "./prefs.js";
import { start } from "./router.js";
import { Shell } from "./shell.js";

/** @type {Page | null} */
let page = null;

/** @param {string} name @param {Record<string, string>} params */
function identity(name, params) {
  return JSON.stringify([name, params]);
}

async function main() {
  const shell = new Shell(document.body);
  try {
    shell.session = await fetchSession();
  } catch (error) {
    shell.showError(error, () => location.reload());
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
      void page.setRoute(route);
      return;
    }
    const isFirst = page === null;
    page?.close();
    const main = shell.replaceMain();
    page = new Page(definition, route, main, session);
    if (!isFirst && isNew) {
      scrollTo(0, 0);
      main.focus({ preventScroll: true });
    }
  });
  onPreferenceChange(() => {
    page?.show();
    if (live.current().state !== "paused") void page?.refresh();
  });
}

void main();
