/** The colours that were chosen in this browser, before anything is painted: a module, as all else is, would come after. */
try {
  document.documentElement.dataset.theme = JSON.parse(localStorage.getItem("headgate") ?? "{}").theme ?? "auto";
} catch {
  // What nobody can read is chosen anew.
}
