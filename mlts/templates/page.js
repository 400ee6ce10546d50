"use strict";
// Charts, and links into closed sections. Every number of a chart stands in a table as well: without scripts the page
// is complete.
{
  const root = document.documentElement;
  root.classList.add("scripted");
  const color = (name) => () => getComputedStyle(root).getPropertyValue(name).trim();
  const short = (value) => (value === null || value === undefined ? "–" : String(Number(value.toPrecision(3))));
  const milliseconds = (log) => (log === null || log === undefined ? "–" : short(10 ** log) + " ms");

  const axis = (label, more) => ({
    label, stroke: color("--muted"), font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif",
    size: 30, labelSize: 20,
    grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 }, ...more,
  });
  const line = (label, name, more) => ({
    label, stroke: color("--" + name), width: 2, points: { show: false }, value: (_, value) => short(value), ...more,
  });

  // Round numbers of milliseconds between two logarithms: 1, 2, 5 of each decade, or even steps where there are few.
  function roundPlaces(_, __, low, high) {
    const from = 10 ** low, to = 10 ** high, found = [];
    if (to / from > 8) {
      const steps = to / from > 3000 ? [1] : [1, 2, 5];
      for (let power = Math.floor(low); power <= high; power++)
        for (const step of steps) found.push(step * 10 ** power);
    } else {
      const rough = (to - from) / 6, unit = 10 ** Math.floor(Math.log10(rough));
      const step = unit * [1, 2, 5, 10].find((one) => one * unit >= rough);
      for (let n = Math.ceil(from / step); n * step <= to; n++) found.push(n * step);
    }
    return found.map(Math.log10).filter((log) => log >= low && log <= high);
  }

  const kinds = {
    distribution(data) {
      const stepped = uPlot.paths.stepped({ align: 1 });
      const sides = ["driver", "baseline"].filter((name) => data[name]);
      const share = (_, value) => (value === null || value === undefined ? "–" : short(value) + " %");
      return {
        data: [data.edges, ...sides.map((name) => [...data[name], 0])],
        scales: { x: { time: false, range: () => [data.edges[0], data.edges[data.edges.length - 1]] } },
        axes: [axis("latency in ms", { splits: roundPlaces, values: (_, logs) => logs.map((log) => short(10 ** log)) }),
          axis("% of executions", { size: 50 })],
        series: [{ label: "from", value: (_, log) => milliseconds(log) },
          ...sides.map((name) => line(name, name, { paths: stepped, fill: color(`--${name}-fill`), value: share,
            dash: name === "baseline" ? [6, 4] : [] }))],
      };
    },
    rounds(data) {
      const level = (value) => data.round.map(() => value);
      return {
        data: [data.round, data.ratio, level(1), level(data.margin)],
        scales: { x: { time: false } },
        axes: [axis("round"), axis("times the baseline", { size: 50 })],
        series: [{ label: "round" }, line("driver over baseline", "driver"),
          line("baseline", "baseline", { dash: [6, 4], width: 1.5 }),
          line("margin", "muted", { dash: [2, 4], width: 1.5 })],
      };
    },
    accumulation(data) {
      const place = data.number.map((_, index) => index);
      const name = (index) => (data.number[index] === undefined ? "" : data.number[index]);
      return {
        data: [place, data.error, data.allowed],
        scales: { x: { time: false }, y: { distr: 3 } },
        axes: [axis("operation", { values: (_, places) => places.map(name) }), axis("error", { size: 64 })],
        series: [{ label: "operation",
          value: (_, index) => (index === null || index === undefined ? "–" : `${name(index)} ${data.operation[index]}`) },
          line("error", "driver", { points: { show: true, size: 5 }, spanGaps: true }),
          line("allowed", "baseline", { dash: [6, 4], spanGaps: true })],
      };
    },
  };

  function draw(figure) {
    const place = figure.querySelector(".plot");
    const width = Math.min(figure.clientWidth, 900);
    if (!width) return;
    const { data, ...options } = kinds[figure.dataset.kind](JSON.parse(figure.querySelector("script").textContent));
    place.replaceChildren();
    new uPlot({ width, height: 240, cursor: { drag: { x: false, y: false } }, ...options }, data, place);
    figure.dataset.width = width;
  }
  const drawIn = (box) => box.querySelectorAll("figure.chart").forEach(draw);
  const drawAll = () => document.querySelectorAll("details.model[open]").forEach(drawIn);

  for (const box of document.querySelectorAll("details.model"))
    box.addEventListener("toggle", () => { if (box.open) drawIn(box); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("resize", () => {
    for (const figure of document.querySelectorAll("details.model[open] figure.chart"))
      if (Math.min(figure.clientWidth, 900) !== Number(figure.dataset.width)) draw(figure);
  });
  addEventListener("beforeprint", () => { root.dataset.print = ""; drawAll(); });
  addEventListener("afterprint", () => { delete root.dataset.print; drawAll(); });

  function openTarget() {
    const box = document.getElementById(location.hash.slice(1));
    if (!box || box.tagName !== "DETAILS") return;
    box.open = true;
    box.scrollIntoView();
    box.querySelector("summary").focus({ preventScroll: true });
  }
  addEventListener("hashchange", openTarget);
  // A link that is followed a second time changes no hash.
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#model="]');
    if (link && link.hash === location.hash) openTarget();
  });
  openTarget();
}
