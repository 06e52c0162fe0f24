/** `<hg-time>`: a time that is updated every second, by one timer for the whole page. */

import * as format from "./format.js";
import { t } from "./language.js";
import { onPreferenceChange } from "./prefs.js";

/** @type {Set<TimeElement>} */
const shown = new Set();

class TimeElement extends HTMLElement {
  #at = "";
  #text = document.createElement("time");
  /** @type {"relative" | "countdown" | "left" | "clock" | "elapsed"} */
  mode = "relative";
  due = t("now");

  connectedCallback() {
    if (!this.#text.isConnected) this.append(this.#text);
    shown.add(this);
    this.update();
  }

  disconnectedCallback() {
    shown.delete(this);
  }

  get at() {
    return this.#at;
  }

  set at(instant) {
    this.#at = instant;
    this.#text.dateTime = instant;
    if (this.isConnected) this.update();
  }

  update() {
    const text = this.#format();
    if (this.#text.textContent !== text) this.#text.textContent = text;
    const full = format.instant(this.#at);
    if (this.#text.title !== full) this.#text.title = full;
  }

  #format() {
    if (this.mode === "clock") return format.clock(this.#at);
    if (this.mode === "relative") return format.relative(this.#at);
    const seconds = (Date.parse(this.#at) - format.now()) / 1000;
    if (this.mode === "elapsed") return format.coarse(-seconds);
    if (seconds <= 0) return this.due;
    const left = format.coarse(seconds + 0.999);
    return this.mode === "left" ? t("{time} left", { time: left }) : t("in {time}", { time: left });
  }
}

customElements.define("hg-time", TimeElement);

function updateAll() {
  for (const each of shown) each.update();
}

setInterval(() => {
  if (!document.hidden) updateAll();
}, 1000);
document.addEventListener("visibilitychange", updateAll);
onPreferenceChange(updateAll);
