/** Set the colour theme and the density before the first paint; a module would run after it. */
try {
  const { theme, density } = JSON.parse(localStorage.getItem("headgate") ?? "{}");
  Object.assign(document.documentElement.dataset, { theme: theme ?? "auto", density: density ?? "comfortable" });
} catch {
  // Unreadable preferences are ignored; the default theme applies.
}
