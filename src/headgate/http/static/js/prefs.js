/** What a person has chosen for this browser: colours, time zone, whether pages follow what happens. */

/** @typedef {{theme: "auto" | "light" | "dark", zone: "local" | "utc", live: boolean}} Prefs */

const NAME = "headgate";

/** @type {Prefs} */
const prefs = { theme: "auto", zone: "local", live: true, ...stored() };

/** @type {Set<() => void>} */
const listeners = new Set();

apply();

/** @returns {Readonly<Prefs>} */
export function chosen() {
  return prefs;
}

/** @param {Partial<Prefs>} choice */
export function choose(choice) {
  Object.assign(prefs, choice);
  try {
    localStorage.setItem(NAME, JSON.stringify(prefs));
  } catch {
    // A browser that keeps nothing still shows the choice until the page is left.
  }
  apply();
  for (const listener of listeners) listener();
}

/** @param {() => void} listener */
export function onChoice(listener) {
  listeners.add(listener);
}

function apply() {
  document.documentElement.dataset.theme = prefs.theme;
}

/** @returns {Partial<Prefs>} */
function stored() {
  try {
    return JSON.parse(localStorage.getItem(NAME) ?? "{}");
  } catch {
    return {};
  }
}
