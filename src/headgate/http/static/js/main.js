/** The entry point: draws the frame, then the page for the current address. */

import "./time_element.js";
import "./charts.js";
import { session as fetchSession } from "./api.js";
import { setApp } from "./commands.js";
import { setNow } from "./format.js";
import * as live from "./live.js";
import { Page } from "./page.js";
import { definitions } from "./pages/all.js";
import { onPreferenceChange } from "./prefs.js";
import { start } from "./router.js";
import { Shell } from "./shell.js";

/** Milliseconds that the first page waits for the first overview of the live stream. */
const FIRST_PATIENCE = 100;

/** @type {Page | null} */
let page = null;

/** @param {string} name @param {Record<string, string>} params */
function identity(name, params) {
  return JSON.stringify([name, params]);
}

async function main() {
  const shell = new Shell(document.body);
  live.start();
  try {
    [shell.session] = await Promise.all([fetchSession(), live.firstOverview(FIRST_PATIENCE)]);
  } catch (error) {
    shell.showError(error, () => location.reload());
    return;
  }
  setNow(shell.session.now);
  setApp(shell.session.app);
  const session = shell.session;
  start((route, isNew, scrollY) => {
    const definition = definitions[route.page];
    const title = definition.title(route);
    document.title = `${title} · ${session.title}`;
    shell.show(route);
    if (page && identity(page.route.page, page.route.params) === identity(route.page, route.params)) {
      void page.setRoute(route, scrollY);
      return;
    }
    const isFirst = page === null;
    page?.close();
    const main = shell.replaceMain();
    shell.page = page = new Page(definition, route, main, session, scrollY);
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
