"use strict";
// The cases of a page: unpacked from what the page carries, found by their names, chosen, ordered and told in full.
// What a driver said goes into the document as text alone.
const FAULTS = ["CRASH", "HANG", "FAIL", "FLAKY", "INTERNAL", "POOR", "NOT_RUN", "NOT_SUPPORTED", "NOT_APPLICABLE",
  "PASS"];
const FACETS = { run: "run", operation: "operation", type: "type", kind: "kind", cause: "cause" };
const LINKED = { signature: "signature", rule: "rule", alike: "message like" };  // set by links alone

function make(tag, properties, ...children) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {}))
    if (name in found && !name.startsWith("aria")) found[name] = value;
    else found.setAttribute(name, value);
  found.append(...children.filter((child) => child !== null && child !== undefined));
  return found;
}
function button(title, act) {
  const found = make("button", { type: "button" }, title);
  found.addEventListener("click", act);
  return found;
}
const badge = (verdict) => make("span", { className: "badge " + verdict }, verdict);
const countWord = (value) => value.toLocaleString("en");
function numberWord(value) {
  if (typeof value !== "number") return { inf: "∞", "-inf": "−∞", nan: "NaN" }[value] || "–";
  const size = Math.abs(value);
  if (size > 3e38) return value > 0 ? "∞" : "−∞";  // where a difference is infinite
  return size >= 1000 && size < 1e7 ? countWord(Math.round(value)) : String(Number(value.toPrecision(3)));
}
const secondsWord = (value) =>
  (!value ? "–" : value < 1 ? numberWord(1000 * value) + " ms" : numberWord(value) + " s");
function firstLine(text, limit = 180) {
  const line = text.trim().split("\n", 1)[0];
  return line.length > limit ? line.slice(0, limit) + "…" : line;
}

class Cases {
  constructor(found) {
    Object.assign(this, found);
    this.count = found.cases;
    this.ids = Array.from({ length: this.count }, (_, row) => this.idOf(row));
    this.low = this.ids.map((id) => id.toLowerCase());
    this.named = new Map();
    for (let row = 0; row < this.count; row++)
      for (const name of new Set([this.ids[row], this.front(row)])) {
        const rows = this.named.get(name);
        if (rows) rows.push(row);
        else this.named.set(name, [row]);
      }
  }
  // A column's word for a row, and its place among the words.
  at(name, row) {
    const places = this.columns[name].at;
    return places.length ? places[row] : 0;
  }
  get(name, row) { return this.columns[name].words[this.at(name, row)]; }
  batch(row) { return this.batches[this.get("batch", row)]; }
  // The id without its digest.
  front(row) {
    const batch = this.batch(row);
    return `${batch[5] || batch.slice(0, 4).join("-")}-${this.get("number", row)}`;
  }
  idOf(row) {
    if (row in this.odd) return this.odd[row];
    const digest = this.digests.slice(row * this.width, (row + 1) * this.width).trim();
    return this.front(row) + (digest ? "-" + digest : "");
  }
  pattern(name, row) { return this.get(name, row).replace("{}", () => this.ids[row]); }
  // Rows that a name means: an id with or without its digest, or that of one run, ID@2.
  find(name) {
    const rows = this.named.get(name);
    if (rows) return rows;
    const cut = name.lastIndexOf("@"), place = Number(name.slice(cut + 1)) - 1;
    return cut < 0 ? [] : (this.named.get(name.slice(0, cut)) || []).filter((row) => this.get("run", row) === place);
  }
  nameOf(row) {
    const same = this.named.get(this.ids[row]).filter((other) => this.ids[other] === this.ids[row]);
    return same.length > 1 ? `${this.ids[row]}@${this.get("run", row) + 1}` : this.ids[row];
  }
  // The value of a case by which a filter chooses.
  facet(name, row) {
    const place = ["operation", "signature", "mode", "kind", "type"].indexOf(name);
    if (place >= 0) return this.batch(row)[place];
    return name === "run" ? String(this.get("run", row) + 1) : String(this.get(name, row));
  }
  // Number of cases by the value of a facet.
  tallies(name) {
    const found = new Map();
    for (let row = 0; row < this.count; row++) {
      const value = this.facet(name, row);
      found.set(value, (found.get(value) || 0) + 1);
    }
    return found;
  }
  // A case as a record has it, as far as the page knows.
  record(row) {
    const [operation, signature, mode, kind, type, batch] = this.batch(row), run = this.runs[this.get("run", row)];
    const plain = (name) => this.get(name, row);
    const json = (name, lacking) => (plain(name) ? JSON.parse(plain(name)) : lacking);
    return { id: this.ids[row], run: plain("run") + 1, driver: run.driver, suite: run.suite,
      batch: batch || this.batch(row).slice(0, 4).join("-"), number: plain("number"), operation, signature, type, kind,
      mode, verdict: plain("verdict"), cause: plain("cause"), stage: plain("stage"), message: plain("message"),
      rule: plain("rule"), error: plain("error"), ulp: plain("ulp"), masked: plain("masked"),
      seconds: plain("seconds"), waiver: plain("waiver"), repeated: plain("repeated"),
      repeat: this.pattern("repeat", row), saved: this.pattern("saved", row), detail: plain("detail"),
      log: plain("log"), notes: json("notes", []), worst: json("worst", null), numbers: json("numbers", {}) };
  }
}
async function unpackCases(element) {
  const bytes = Uint8Array.from(atob(element.textContent.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Cases(await new Response(stream).json());
}

const everyCase = () => ({ text: "", verdict: [], run: [], operation: [], type: [], kind: [], cause: [], signature: [],
  rule: [], alike: [], sort: "verdict" });
// A word of a search as a test of a text; * and ? stand for others, and then the whole must fit.
function wordTest(word) {
  if (!/[*?]/.test(word)) return (text) => text.includes(word);
  const form = word.replace(/[.+^${}()|[\]\\]/g, "\\$&").replace(/\*+/g, "[^]*").replace(/\?/g, "[^]");
  const expression = new RegExp("^" + form + "$");
  return (text) => expression.test(text);
}
function chooseRows(cases, wanted) {
  const words = wanted.text.toLowerCase().split(/\s+/).filter(Boolean).map(wordTest);
  const messages = words.map((fits) => cases.columns.message.words.map((message) => fits(message.toLowerCase())));
  const operations = words.map((fits) => cases.batches.map((batch) => fits(batch[0].toLowerCase())));
  const names = ["verdict", ...Object.keys(FACETS), ...Object.keys(LINKED)].filter((name) => wanted[name].length);
  const sets = names.map((name) => [name, new Set(wanted[name])]);
  const globs = /[*?]/.test(wanted.text), found = [];
  for (let row = 0; row < cases.count; row++) {
    if (!sets.every(([name, set]) => set.has(cases.facet(name, row)))) continue;
    const fits = words.every((word, place) => word(cases.low[row]) || operations[place][cases.get("batch", row)] ||
      messages[place][cases.at("message", row)] || (globs && word(cases.front(row).toLowerCase())));
    if (fits) found.push(row);
  }
  return found;
}
const sizeOf = (value) => ({ inf: Infinity, "-inf": -Infinity, nan: Infinity }[value] ?? value);
const SORT_KEYS = {
  verdict: (cases, row) => FAULTS.indexOf(cases.get("verdict", row)),
  id: (cases, row) => cases.ids[row],
  run: (cases, row) => cases.get("run", row),
  cause: (cases, row) => cases.get("cause", row) || null,
  error: (cases, row) => sizeOf(cases.get("error", row)),
  ulp: (cases, row) => sizeOf(cases.get("ulp", row)),
  seconds: (cases, row) => sizeOf(cases.get("seconds", row)),
};
function orderRows(cases, rows, order) {
  const name = order.replace(/^-/, ""), sign = order.startsWith("-") ? -1 : 1;
  if (!(name in SORT_KEYS)) return rows;
  const keys = new Map(rows.map((row) => [row, SORT_KEYS[name](cases, row)]));
  const compare = name === "id" ? new Intl.Collator("en", { numeric: true }).compare
    : (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  return rows.sort((one, other) => {
    const a = keys.get(one), b = keys.get(other);
    if (a === null || b === null) return (a === null) - (b === null) || one - other;  // no value: last
    return sign * compare(a, b) || one - other;
  });
}

// Texts that a spreadsheet would take for a formula get an apostrophe in front.
function csvCell(value) {
  if (typeof value === "number") return String(value);
  const text = value === null ? "" : String(value);
  const safe = /^[=+\-@\t\r]/.test(text) ? "'" + text : text;
  return /[",\r\n]/.test(safe) || safe !== safe.trim() ? `"${safe.replaceAll('"', '""')}"` : safe;
}
function csvOf(cases, rows) {
  const plain = (row) => {
    const { notes, worst: _, numbers: __, ...one } = cases.record(row);
    return { ...one, notes: notes.join("\n") };
  };
  const names = cases.count ? Object.keys(plain(0)) : ["id"];
  const lines = rows.map((row) => Object.values(plain(row)).map(csvCell).join(","));
  return [names.join(","), ...lines, ""].join("\r\n");
}
const jsonOf = (cases, rows) => JSON.stringify(rows.map((row) => cases.record(row)), null, 1);
function download(name, type, content) {
  const place = URL.createObjectURL(new Blob([content], { type }));
  make("a", { href: place, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(place), 60000);
}
