"use strict";
// Comfort only: the page is complete without it.
for (const tools of document.querySelectorAll(".tools")) tools.hidden = false;

function filterRows(tools) {
  const words = tools.querySelector("input").value.toLowerCase().split(/\s+/).filter(Boolean);
  const state = tools.querySelector("select");
  let shown = 0;
  for (const row of document.querySelectorAll(tools.dataset.of)) {
    const text = row.textContent.toLowerCase();
    const tags = (row.dataset.tags || "").split(" ");
    const fits = words.every((word) => text.includes(word)) && (!state || !state.value || tags.includes(state.value));
    row.hidden = !fits;
    shown += fits;
  }
  tools.querySelector(".shown").textContent = shown + " shown";
}
for (const tools of document.querySelectorAll(".tools[data-of]")) {
  tools.addEventListener("input", () => filterRows(tools));
  for (const button of tools.querySelectorAll("button[data-open]"))
    button.addEventListener("click", () => {
      for (const item of document.querySelectorAll(tools.dataset.of)) item.open = button.dataset.open === "yes";
    });
}

function valueOf(row, place) {
  const cell = row.cells[place];
  const text = cell.dataset.value === undefined ? cell.textContent.trim() : cell.dataset.value;
  const number = Number(text.replace(/,/g, ""));
  return Number.isNaN(number) ? text : number;  // an empty cell is 0
}
function compareValues(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a === "number") return 1;
  if (typeof b === "number") return -1;
  return a.localeCompare(b);
}
for (const head of document.querySelectorAll(".sortable th[data-sort]")) {
  head.tabIndex = 0;
  head.setAttribute("aria-sort", "none");
  const sort = () => {
    const first = head.dataset.sort === "number" ? "descending" : "ascending";
    const other = first === "descending" ? "ascending" : "descending";
    const way = head.getAttribute("aria-sort") === first ? other : first;
    for (const each of head.parentElement.cells) if (each.dataset.sort) each.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", way);
    const body = head.closest("table").tBodies[0];
    const sign = way === "ascending" ? 1 : -1;
    const rows = Array.from(body.rows, (row) => [valueOf(row, head.cellIndex), row]);
    rows.sort((a, b) => sign * compareValues(a[0], b[0]));
    body.append(...rows.map((pair) => pair[1]));
  };
  head.addEventListener("click", sort);
  head.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    sort();
  });
}

async function copyText(text, button, shown) {
  const title = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    if (shown) getSelection().selectAllChildren(shown);
    button.textContent = shown ? "Selected" : "Not allowed";
  }
  setTimeout(() => { button.textContent = title; }, 1500);
}
function copyButton(box) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.setAttribute("aria-label", "copy the command");
  const code = box.querySelector("code");
  button.addEventListener("click", () => copyText(code.textContent, button, code));
  box.append(button);
}
for (const box of document.querySelectorAll(".command")) copyButton(box);

// On paper nothing is closed.
{
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const item of opened) item.open = true;
  });
  addEventListener("afterprint", () => {
    for (const item of opened) item.open = false;
    opened = [];
  });
}
