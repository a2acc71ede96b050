// What pages do without the server: times in the zone of the browser, values of charts, tables as cards on phones, checkboxes.
"use strict";
const stale = () => document.getElementById("stale");
const pad = (number) => String(number).padStart(2, "0");

// A time as the server writes it, in the zone of the browser: 2026-11-23 08:00:00.
function local(date) {
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return `${day} ${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

// The offset of a local time, such as +05:30.
function offset(date) {
  const minutes = -date.getTimezoneOffset();
  return `${minutes < 0 ? "-" : "+"}${pad(Math.floor(Math.abs(minutes) / 60))}:${pad(Math.abs(minutes) % 60)}`;
}

// Show what the server has rendered for this browser; called again after each live update.
function prepare() {
  for (const time of document.querySelectorAll("time[datetime]")) {
    time.textContent = local(new Date(time.dateTime));
  }
  for (const text of document.querySelectorAll(".chart [data-time]")) {
    text.textContent = local(new Date(Number(text.dataset.time))).slice(5, 16);
  }
  for (const table of document.querySelectorAll("main table:has(thead)")) {
    const heads = [...table.tHead.rows[0].cells].map((head) => head.textContent.replace(/[▲▼]/g, "").trim());
    for (const row of table.tBodies[0].rows) {
      for (const cell of row.cells) {
        if (cell.cellIndex > 0 && heads[cell.cellIndex]) {
          cell.dataset.label = heads[cell.cellIndex];
        }
      }
    }
    table.classList.add("cards");
  }
}

const zone = document.getElementById("zone");
if (zone) {
  zone.textContent = zone.dataset.local.replace("{zone}", Intl.DateTimeFormat().resolvedOptions().timeZone);
}
prepare();

for (const name of ["htmx:sendError", "htmx:responseError", "htmx:timeout"]) {
  document.addEventListener(name, () => { stale().hidden = false; });
}
document.addEventListener("htmx:afterSwap", () => { stale().hidden = true; prepare(); });
document.addEventListener("change", (event) => {
  if (event.target.matches("input[data-all]")) {
    for (const box of event.target.form.querySelectorAll(`input[name="${event.target.dataset.all}"]`)) {
      box.checked = event.target.checked;
    }
  }
});

// A time that is typed without a zone is one of this page: it is sent with its offset.
document.addEventListener("submit", (event) => {
  for (const input of event.target.querySelectorAll("input[data-moment]")) {
    const typed = input.value.trim();
    const date = new Date(typed.replace(" ", "T"));
    if (/^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?$/.test(typed) && !Number.isNaN(date.getTime())) {
      input.value = typed.replace(" ", "T") + offset(date);
    }
  }
});

// The value of a chart at the pointer, or at the point that the arrow keys choose.
const chosen = new WeakMap();
const points = (chart) => chart.dataset.points.split(" ").map((point) => point.split(",").map(Number));

function amount(value, unit) {
  if (unit === "B") {
    const step = value < 1024 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), 5);
    return `${Number((value / 1024 ** step).toPrecision(3))} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][step]}`;
  }
  return `${Number(value.toPrecision(4)).toLocaleString("en")} ${unit}`.trim();
}

function choose(chart, index) {
  const all = points(chart);
  const [at, value] = all[Math.max(0, Math.min(index, all.length - 1))];
  const [first, last] = chart.dataset.span.split(",").map(Number);
  const [left, right] = ["x1", "x2"].map((name) => Number(chart.querySelector(".grid").getAttribute(name)));
  const heights = [...chart.querySelectorAll(".grid")].map((line) => Number(line.getAttribute("y1")));
  const [base, top] = [Math.max(...heights), Math.min(...heights)];
  const x = left + ((at - first) * (right - left)) / (last - first);
  const y = base - (value * (base - top)) / Number(chart.dataset.top);
  let cross = chart.querySelector(".cross");
  let mark = chart.querySelector(".mark");
  if (!cross) {
    cross = chart.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "line"));
    mark = chart.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "circle"));
    cross.setAttribute("class", "cross");
    mark.setAttribute("class", "mark");
  }
  for (const [name, number] of [["x1", x], ["x2", x], ["y1", top], ["y2", base]]) {
    cross.setAttribute(name, number);
  }
  for (const [name, number] of [["cx", x], ["cy", y], ["r", 4]]) {
    mark.setAttribute(name, number);
  }
  chosen.set(chart, Math.max(0, Math.min(index, all.length - 1)));
  chart.closest("figure").querySelector("output").textContent =
    `${local(new Date(at * 1000)).slice(5, 16)}: ${amount(value, chart.dataset.unit)}`;
}

document.addEventListener("pointermove", (event) => {
  const chart = event.target.closest(".chart[data-points]");
  if (!chart || !chart.dataset.points) {
    return;
  }
  const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
  const [first, last] = chart.dataset.span.split(",").map(Number);
  const [left, right] = ["x1", "x2"].map((name) => Number(chart.querySelector(".grid").getAttribute(name)));
  const at = first + ((place.x - left) * (last - first)) / (right - left);
  const distances = points(chart).map(([time]) => Math.abs(time - at));
  choose(chart, distances.indexOf(Math.min(...distances)));
});
document.addEventListener("keydown", (event) => {
  const chart = event.target.closest(".chart[data-points]");
  if (chart && chart.dataset.points && ["ArrowLeft", "ArrowRight"].includes(event.key)) {
    const before = chosen.get(chart) ?? points(chart).length;
    choose(chart, before + (event.key === "ArrowLeft" ? -1 : 1));
    event.preventDefault();
  }
});

// The browser scrolls to the field that has the focus, not to the text about it below.
addEventListener("load", () => document.getElementById("problem")?.scrollIntoView({block: "nearest"}));
