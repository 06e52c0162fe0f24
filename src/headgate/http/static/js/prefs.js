/** Preferences stored in this browser: colours, density, time zone, live updates. */

/** @typedef {{theme: "auto" | "light" | "dark", density: "comfortable" | "compact", zone: "local" | "utc", live: boolean}} Prefs */

const STORAGE_KEY = "headgate";

/** @type {Prefs} */
const prefs = { theme: "auto", density: "comfortable", zone: "local", live: true, ...stored() };

/** @type {Set<() => void>} */
const listeners = new Set();

apply();

/** @returns {Readonly<Prefs>} */
export function preferences() {
  return prefs;
}

/** @param {Partial<Prefs>} changes */
export function setPreferences(changes) {
  Object.assign(prefs, changes);
  try {
    localStorage.setItem(STORAGE_KEY, JSON.stringify(prefs));
  } catch {
    // Without storage the preferences last until the page is closed.
  }
  apply();
  for (const listener of listeners) listener();
}

/** @param {() => void} listener */
export function onPreferenceChange(listener) {
  listeners.add(listener);
}

function apply() {
  document.documentElement.dataset.theme = prefs.theme;
  document.documentElement.dataset.density = prefs.density;
}

/** @returns {Partial<Prefs>} */
function stored() {
  try {
    return JSON.parse(localStorage.getItem(STORAGE_KEY) ?? "{}");
  } catch {
    return {};
  }
}
