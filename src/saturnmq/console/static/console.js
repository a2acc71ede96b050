// What pages do without the server: say that a live update failed, and select all checkboxes of a table.
"use strict";
const stale = () => document.getElementById("stale");
for (const name of ["htmx:sendError", "htmx:responseError", "htmx:timeout"]) {
  document.addEventListener(name, () => { stale().hidden = false; });
}
document.addEventListener("htmx:afterSwap", () => { stale().hidden = true; });
document.addEventListener("change", (event) => {
  if (event.target.matches("input[data-all]")) {
    for (const box of event.target.form.querySelectorAll(`input[name="${event.target.dataset.all}"]`)) {
      box.checked = event.target.checked;
    }
  }
});
