"use strict";
// The list of all cases: unpacked when somebody first asks for it, filtered and sorted here, a page of rows at a time.
{
  const ROWS = 100;
  const NUMBERS = ["error", "ulp", "seconds"];
  const HEADS = [["verdict", "verdict"], ["run", "run"], ["id", "case"], ["cause", "cause"], ["", "message"],
    ["error", "error"], ["ulp", "ULP"], ["seconds", "time"]];
  const section = document.getElementById("cases"), box = document.getElementById("case-list");
  let cases = null, asked = null, wanted = everyCase(), rows = [], page = 0;
  const part = { heads: {}, selects: {} };
  const remember = (hash) => history.replaceState(null, "", hash);
  const panel = new CasePanel((name) => remember("#case=" + encodeURIComponent(name)), (opener) => {
    remember(address());
    (opener || part.search)?.focus({ preventScroll: Boolean(opener) });
  });

  // The list, ready for use; a browser that cannot unpack it says so.
  function ready() {
    asked = asked || (async () => {
      box.setAttribute("aria-busy", "true");
      try {
        cases = await unpackCases(document.getElementById("cases-data"));
        build();
      } catch (error) {
        box.replaceChildren(make("p", { className: "none" }, "This browser cannot show the list: " + error.message));
      }
      box.removeAttribute("aria-busy");
    })();
    return asked;
  }

  // --- the address ---------------------------------------------------------------------------------------------------

  function address() {
    const found = new URLSearchParams(), usual = everyCase();
    for (const [name, value] of Object.entries(wanted))
      for (const one of Array.isArray(value) ? value : [value])
        if (one && one !== usual[name]) found.append(name, one);
    const text = found.toString();
    return "#cases" + (text ? "?" + text : "");
  }
  function decoded(text) {
    try { return decodeURIComponent(text); } catch { return text; }
  }
  async function follow() {
    const hash = location.hash;
    const listed = hash === "#cases" || hash.startsWith("#cases?");
    if (!listed && !hash.startsWith("#case=")) return;
    await ready();
    if (!cases) return;
    if (!listed) {
      panel.show(cases, decoded(hash.slice("#case=".length)), rows);
      return;
    }
    panel.hide();
    if (hash !== "#cases") {
      const given = new URLSearchParams(hash.slice("#cases?".length));
      wanted = everyCase();
      for (const name of Object.keys(wanted)) {
        const values = given.getAll(name);
        wanted[name] = Array.isArray(wanted[name]) ? values : values[0] || wanted[name];
      }
      fill();
      update(false);
    }
    section.scrollIntoView();
    part.status.focus({ preventScroll: true });
  }

  // --- the list ------------------------------------------------------------------------------------------------------

  function build() {
    part.search = make("input", { type: "search", id: "case-search", placeholder: "id, operation or message; * and ?",
      spellcheck: false, autocomplete: "off", "aria-keyshortcuts": "/",
      "aria-label": "search cases by id, operation or message" });
    part.search.addEventListener("input", () => { wanted.text = part.search.value; update(true); });
    part.chips = make("span", { className: "chips" });
    part.status = make("p", { className: "status", tabIndex: -1, role: "status", "aria-live": "polite" });
    const tools = make("div", { className: "filters", role: "search", "aria-label": "cases" }, part.search,
      verdictBoxes(), ...selectBoxes(), part.chips,
      button("Clear filters", () => { wanted = { ...everyCase(), sort: wanted.sort }; fill(); update(true); }),
      button("Download CSV", () => download("cases.csv", "text/csv", csvOf(cases, rows))),
      button("Download JSON", () => download("cases.json", "application/json", jsonOf(cases, rows))));
    part.body = make("tbody", {});
    part.body.addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (!row || getSelection().toString() || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      panel.open(cases, Number(row.dataset.row), rows, row.querySelector("a"));
    });
    part.body.addEventListener("keydown", walk);
    const list = make("table", { className: "wide cases", "aria-label": "cases" });
    list.append(make("thead", {}, heads()), part.body);
    part.place = make("span", { className: "muted" });
    part.back = button("Previous", () => turn(-1));
    part.on = button("Next", () => turn(1));
    part.pager = make("nav", { className: "pager", "aria-label": "pages of cases" }, part.back, part.place, part.on);
    box.replaceChildren(tools, part.status, make("div", { className: "scroll" }, list), part.pager);
    fill();
    update(false);
  }
  function verdictBoxes() {
    const known = cases.tallies("verdict");
    part.verdicts = FAULTS.filter((verdict) => known.has(verdict)).map((verdict) => {
      const input = make("input", { type: "checkbox", value: verdict });
      input.addEventListener("change", () => {
        wanted.verdict = part.verdicts.filter((one) => one.checked).map((one) => one.value);
        update(true);
      });
      return input;
    });
    return make("fieldset", { className: "verdicts" }, make("legend", {}, "verdict"), ...part.verdicts.map((input) =>
      make("label", {}, input, badge(input.value), " " + countWord(known.get(input.value)))));
  }
  function selectBoxes() {
    const label = (name, value) => {
      const run = name === "run" && cases.runs[value - 1];
      return run ? `${value}: ${run.suite}, ${run.driver}` : value;
    };
    return Object.entries(FACETS).filter(([name]) => name !== "run" || cases.runs.length > 1).map(([name, title]) => {
      const words = [...cases.tallies(name)].filter(([value]) => value).sort((a, b) => (a[0] < b[0] ? -1 : 1));
      const select = make("select", { "aria-label": title }, make("option", { value: "" }, "any " + title),
        ...words.map(([value, n]) => make("option", { value }, `${label(name, value)} (${countWord(n)})`)));
      select.addEventListener("change", () => { wanted[name] = select.value ? [select.value] : []; update(true); });
      part.selects[name] = select;
      return select;
    });
  }
  function heads() {
    return make("tr", {}, ...HEADS.filter(([name]) => name !== "run" || cases.runs.length > 1).map(([name, title]) => {
      const cell = make("th", { scope: "col", className: NUMBERS.includes(name) ? "num" : "" });
      cell.append(name ? button(title, () => sort(name)) : title);
      if (name) part.heads[name] = cell;
      return cell;
    }));
  }
  // Makes the controls show what is wanted.
  function fill() {
    part.search.value = wanted.text;
    for (const input of part.verdicts) input.checked = wanted.verdict.includes(input.value);
    for (const [name, select] of Object.entries(part.selects)) {
      const many = wanted[name].length > 1;
      select.querySelector("option[data-many]")?.remove();
      if (many) select.append(make("option", { value: "+", "data-many": "" }, `${name} ${wanted[name].join(", ")}`));
      select.value = many ? "+" : wanted[name][0] || "";
    }
  }
  function chips() {
    const set = Object.entries(LINKED).filter(([name]) => wanted[name].length);
    part.chips.replaceChildren(...set.map(([name, title]) => {
      const first = rows.length ? firstLine(cases.get("message", rows[0])) : "";
      const words = name === "alike" ? first || "none" : wanted[name].join(", ");
      const chip = button(`${title}: ${words} ×`, () => { wanted[name] = []; update(true); part.search.focus(); });
      chip.className = "chip";
      chip.setAttribute("aria-label", `without the filter ${title}: ${words}`);
      return chip;
    }));
  }
  function update(told) {
    rows = orderRows(cases, chooseRows(cases, wanted), wanted.sort);
    page = 0;
    chips();
    if (told) remember(address());
    draw();
  }
  function draw() {
    const pages = Math.max(Math.ceil(rows.length / ROWS), 1), all = countWord(cases.count);
    part.status.textContent = (rows.length < cases.count ? countWord(rows.length) + " of " : "") + all + " cases";
    part.place.textContent = ` page ${countWord(page + 1)} of ${countWord(pages)} `;
    part.pager.hidden = pages < 2;
    part.back.disabled = page === 0;
    part.on.disabled = page === pages - 1;
    for (const [name, cell] of Object.entries(part.heads)) {
      const way = wanted.sort === name ? "ascending" : wanted.sort === "-" + name ? "descending" : "none";
      cell.setAttribute("aria-sort", way);
    }
    part.body.replaceChildren(...rows.slice(page * ROWS, (page + 1) * ROWS).map(line));
  }
  function line(row) {
    const get = (name) => cases.get(name, row), number = (words) => make("td", { className: "num" }, words);
    const link = make("a", { className: "id", href: "#case=" + encodeURIComponent(cases.nameOf(row)) }, cases.ids[row]);
    const waived = get("waiver") ? make("span", { className: "badge waived" }, "waived") : null;
    return make("tr", { "data-row": row }, make("td", {}, badge(get("verdict")), waived),
      cases.runs.length > 1 ? make("td", {}, String(get("run") + 1)) : null,
      make("th", { scope: "row" }, link), make("td", {}, get("cause")),
      make("td", { className: "words" }, make("bdi", {}, firstLine(get("message")))),
      number(numberWord(get("error"))), number(numberWord(get("ulp"))), number(secondsWord(get("seconds"))));
  }
  function turn(step) {
    page += step;
    draw();
    part.body.querySelector("a")?.focus({ preventScroll: true });
    part.status.scrollIntoView({ block: "nearest" });
  }
  function sort(name) {
    const first = NUMBERS.includes(name) ? "-" + name : name;
    const other = first.startsWith("-") ? name : "-" + name;
    wanted.sort = wanted.sort === first ? other : first;
    update(true);
  }
  function walk(event) {
    const row = event.target.closest("tr");
    if (!row || event.altKey || event.ctrlKey || event.metaKey) return;
    const steps = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling,
      Home: part.body.firstElementChild, End: part.body.lastElementChild };
    if (event.key in steps) steps[event.key]?.querySelector("a").focus();
    else if (event.key === " ") panel.open(cases, Number(row.dataset.row), rows, row.querySelector("a"));
    else return;
    event.preventDefault();
  }

  // --- the rest of the page ------------------------------------------------------------------------------------------

  // Fields of tables become links to their cases.
  function linkTables() {
    for (const table of document.querySelectorAll("table[data-cases]")) {
      const base = [...new URLSearchParams(table.dataset.cases.split("?")[1])];
      const link = (cell, more) => {
        const found = make("a", { href: "#cases?" + new URLSearchParams([...Object.entries(more), ...base]) });
        found.append(...cell.childNodes);
        cell.append(found);
      };
      if (table.classList.contains("matrix")) linkMatrix(table, link);
      else
        for (const { cells } of table.tBodies[0].rows)
          link(cells[1], { operation: cells[0].dataset.name || cells[0].textContent, signature: cells[1].textContent });
    }
  }
  function linkMatrix(table, link) {
    const types = Array.from(table.tHead.rows[0].cells, (cell) => cell.textContent);
    for (const row of table.querySelectorAll("tbody tr:not(.total)"))
      for (const cell of row.querySelectorAll("td:not(:empty)")) {
        const sum = cell.cellIndex === types.length - 1;
        link(cell, { operation: row.cells[0].textContent, ...(sum ? {} : { type: types[cell.cellIndex] }) });
      }
  }

  for (const note of document.querySelectorAll(".noscript")) note.remove();
  box.hidden = false;
  box.append(make("p", { className: "muted" }, "The list is unpacked when it comes into sight."));
  linkTables();
  addEventListener("hashchange", follow);
  // A link that is followed a second time changes no address.
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.('a[href^="#case"]');
    if (link && !event.defaultPrevented && !event.ctrlKey && !event.metaKey && link.hash === location.hash) follow();
  });
  addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "checkbox";
    if (event.key === "Escape" && panel.isOpen) panel.close();
    else if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      ready().then(() => { section.scrollIntoView(); part.search?.focus({ preventScroll: true }); });
    }
  });
  new IntersectionObserver((seen, watch) => {
    if (!seen.some((one) => one.isIntersecting)) return;
    watch.disconnect();
    ready();
  }, { rootMargin: "400px" }).observe(section);
  follow();
}
