"use strict";
// One case with all that the page knows of it, beside the list.
const REPEATED = { same: "failed again in a new process", differs: "did not fail again",
  sequence: "fails only behind the cases before it; the sequence is saved" };

class CasePanel {
  // `onOpen` is told the name of a case, `onClose` that there is none any more.
  constructor(onOpen, onClose) {
    Object.assign(this, { onOpen, onClose, opener: null });
    this.box = make("aside", { className: "drawer", hidden: true, tabIndex: -1, role: "dialog" });
    document.body.append(this.box);
  }
  get isOpen() { return !this.box.hidden; }
  hide() { this.box.hidden = true; }
  close() {
    this.hide();
    this.onClose(this.opener && this.opener.isConnected ? this.opener : null);
  }
  present(title, ...content) {
    const head = make("h3", { id: "case-title", tabIndex: -1 }, title);
    this.box.setAttribute("aria-labelledby", "case-title");
    this.box.replaceChildren(make("div", { className: "head" }, head, button("Close", () => this.close())), ...content);
    this.box.hidden = false;
    this.box.scrollTop = 0;
    head.focus({ preventScroll: true });
  }
  // The case of a name in the address, or that there is none.
  show(cases, name, rows) {
    const [row] = cases.find(name);
    if (row !== undefined) return this.open(cases, row, rows, null);
    this.opener = null;
    return this.present("No such case", make("p", {}, "No case on this page is called ",
      make("bdi", { className: "id" }, name.slice(0, 400)),
      ". It may be of another run, or of another profile or seed."));
  }
  // `rows` are those of the list; `opener` gets the focus back.
  open(cases, row, rows, opener) {
    this.opener = opener;
    const one = cases.record(row), name = cases.nameOf(row), run = cases.runs[one.run - 1];
    this.onOpen(name);
    const place = rows.indexOf(row);
    const step = (title, other) => {
      const link = () => document.querySelector(`[data-row="${other}"] a`);
      const found = button(title, () => this.open(cases, other, rows, link()));
      found.disabled = place < 0 || other === undefined;
      return found;
    };
    const link = button("Copy link", () => copyText(location.href, link, null));
    const content = [make("p", { className: "steps" }, step("Previous case", rows[place - 1]),
      step("Next case", rows[place + 1]), link)];
    if (one.message) content.push(make("pre", {}, one.message));
    content.push(this.facts(cases, one, run));
    if (one.worst) content.push(this.worst(one.worst));
    const part = (title, ...found) => content.push(make("h4", {}, title), ...found);
    if (one.detail) part("Operands", make("p", { className: "id" }, one.detail));
    else if (one.verdict !== "PASS") content.push(make("p", { className: "muted" },
      "The page has no more of this case; records*.jsonl in the folder of the run has."));
    if (one.notes.length) part("Notes", make("ul", {}, ...one.notes.map((note) => make("li", {}, note))));
    const numbers = Object.entries(one.numbers);
    if (numbers.length) part("Measured", make("dl", {}, ...numbers.flatMap(([title, value]) =>
      [make("dt", {}, title.replaceAll("_", " ")), make("dd", {}, numberWord(value))])));
    if (one.log) part("End of the driver's log", make("pre", {}, one.log));
    if (one.repeat) {
      const command = make("div", { className: "command" }, make("code", {}, one.repeat));
      copyButton(command);
      part("Repeat", command);
    }
    const same = cases.find(cases.front(row)).filter((other) => other !== row);
    if (same.length) part("In other runs", make("ul", {}, ...same.slice(0, 50).map((other) => {
      const title = cases.nameOf(other);
      return make("li", {}, badge(cases.get("verdict", other)), " ",
        make("a", { className: "id", href: "#case=" + encodeURIComponent(title) }, title));
    })));
    this.present(name, ...content);
  }
  facts(cases, one, run) {
    const found = make("dl", {});
    const fact = (title, ...value) => {
      const there = value.some((item) => item !== "" && item !== null);
      if (there) found.append(make("dt", {}, title), make("dd", {}, ...value));
    };
    fact("verdict", badge(one.verdict), one.cause ? " " + one.cause : "");
    fact("waived", one.waiver);
    fact("stage", one.stage);
    fact("operation", one.operation);
    fact("signature", make("span", { className: "id" }, one.signature));
    fact("type, kind, mode", [one.type, one.kind, one.mode].filter(Boolean).join(", "));
    fact("rule broken", one.rule);
    if (one.error !== null)
      fact("largest error", typeof one.error === "number" ? numberWord(one.error) + " × allowed"
        : "where no difference is allowed");
    if (one.ulp !== null) fact("ULP", numberWord(one.ulp));
    if (one.masked) fact("masked", numberWord(100 * one.masked) + " %");
    fact("time", secondsWord(one.seconds));
    fact("run again", REPEATED[one.repeated] || one.repeated);
    fact("saved as", one.saved ? make("code", {}, one.saved) : "");
    fact("driver", make("bdi", {}, run.driver));
    fact("run", `${cases.runs.length > 1 ? one.run + ": " : ""}${run.suite}, `, make("bdi", {}, run.folder));
    return found;
  }
  worst([output, index, got, expected, allowed, ratio, ulp]) {
    const exact = (value) => (typeof value === "number" ? String(Number(value.toPrecision(9))) : value ?? "–");
    const indices = Array.isArray(index) ? index : [];
    const rows = [["worst element of", output ?? ""], ["index", `(${indices.join(", ")})`], ["got", exact(got)],
      ["expected", exact(expected)], ["allowed difference", numberWord(allowed)],
      ["in units of allowed", numberWord(ratio)], ["ULP", numberWord(ulp)]];
    return make("table", {}, make("tbody", {}, ...rows.map(([title, value]) =>
      make("tr", {}, make("th", { scope: "row" }, title), make("td", {}, String(value))))));
  }
}
