/** Set the colour theme before the first paint; a module would run after it. */
try {
  document.documentElement.dataset.theme = JSON.parse(localStorage.getItem("headgate") ?? "{}").theme ?? "auto";
} catch {
  // Unreadable preferences are ignored; the default theme applies.
}
