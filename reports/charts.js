"use strict";
// Draws the figures of a page when they come into sight, and again when the theme or their width changes. Opens closed
// boxes that links lead to.
{
  const root = document.documentElement;
  root.classList.add("scripted");
  const LINES = ["driver", "baseline", "third", "fourth"], DASHES = [[], [6, 4], [2, 3], [10, 3, 2, 3]];
  const FONT = "12px system-ui, sans-serif";
  const color = (name) => () => getComputedStyle(root).getPropertyValue(name).trim();
  const none = (value) => value === null || value === undefined;
  function short(value) {
    if (none(value)) return "–";
    const size = Math.abs(value);
    return size >= 1000 && size < 1e9 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
  }
  const milliseconds = (log) => (none(log) ? "–" : short(10 ** log) + " ms");

  const axis = (label, more) => ({
    label, stroke: color("--chart-text"), font: FONT, labelFont: FONT, size: 30, labelSize: 20,
    grid: { stroke: color("--chart-line"), width: 1 }, ticks: { stroke: color("--chart-line"), width: 1 }, ...more,
  });
  const upright = (label, more) => axis(label, {
    size: (_, words) => 24 + 7 * Math.max(3, ...(words || []).map((word) => String(word).length)),
    values: (_, values) => values.map((value) => (none(value) ? "" : short(value))), ...more,
  });
  const line = (label, name, more) => ({
    label, stroke: color("--" + name), width: 2, points: { show: false }, value: (_, value) => short(value), ...more,
  });
  // Scales of timelines start at nothing, so that a curve looks as steep as it is.
  const fromZero = { range: (_, low, high) => [Math.min(low, 0), high > 0 ? high * 1.06 : 1] };

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

  // Powers of ten between two sizes, eight at most.
  function decades(_, __, low, high) {
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
    const step = Math.max(1, Math.ceil((last - first) / 8));
    const found = [];
    for (let power = first; power <= last; power += step) found.push(10 ** power);
    return found;
  }
  const exponent = (value) =>
    (value >= 0.001 && value < 10000 ? short(value) : value.toExponential(0).replace("e+", "e"));

  // Counts have no ticks between whole numbers.
  const whole = (values) => values.every((value) => none(value) || Number.isInteger(value));
  const steps = [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8].flatMap((unit) => [unit, 2 * unit, 5 * unit]);
  const ticks = (values) => (whole(values) ? { incrs: steps } : {});

  // Numbered lines across a chart where something happened; numbers that would touch are left out.
  function marker(marks) {
    return (plot) => {
      const { ctx, bbox } = plot, ratio = devicePixelRatio;
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = color("--chart-mark")();
      ctx.font = `${11 * ratio}px system-ui, sans-serif`;
      ctx.textAlign = "center";
      ctx.lineWidth = ratio;
      ctx.setLineDash([3 * ratio, 3 * ratio]);
      let free = -Infinity;
      marks.forEach(([at], index) => {
        if (none(at)) return;
        const place = plot.valToPos(at, "x", true);
        if (place < bbox.left || place > bbox.left + bbox.width) return;
        ctx.beginPath();
        ctx.moveTo(place, bbox.top);
        ctx.lineTo(place, bbox.top + bbox.height);
        ctx.stroke();
        if (place < free) return;
        ctx.fillText(String(index + 1), place, bbox.top - 3 * ratio);
        free = place + 16 * ratio;
      });
      ctx.restore();
    };
  }

  // Each kind makes of its data the options of one chart or more.
  const kinds = {
    // edges: decimal logarithms of milliseconds; driver, baseline: per cent for each bin.
    distribution(data) {
      const stepped = uPlot.paths.stepped({ align: 1 });
      const sides = ["driver", "baseline"].filter((name) => data[name]);
      const share = (_, value) => (none(value) ? "–" : short(value) + " %");
      return [{
        data: [data.edges, ...sides.map((name) => [...data[name], 0])],
        scales: { x: { time: false, range: () => [data.edges[0], data.edges[data.edges.length - 1]] } },
        axes: [axis("latency in ms", { splits: roundPlaces, values: (_, logs) => logs.map((log) => short(10 ** log)) }),
          upright("% of executions")],
        series: [{ label: "from", value: (_, log) => milliseconds(log) },
          ...sides.map((name) => line(name, name, { paths: stepped, fill: color(`--${name}-fill`), value: share,
            dash: name === "baseline" ? [6, 4] : [] }))],
      }];
    },
    // round, ratio: by round; margin: a level.
    rounds(data) {
      const level = (value) => data.round.map(() => value);
      return [{
        data: [data.round, data.ratio, level(1), level(data.margin)],
        scales: { x: { time: false } },
        axes: [axis("round"), upright("times the baseline")],
        series: [{ label: "round" }, line("driver over baseline", "driver"),
          line("baseline", "baseline", { dash: [6, 4], width: 1.5 }),
          line("margin", "chart-text", { dash: [2, 4], width: 1.5 })],
      }];
    },
    // number, operation, error, allowed: by place in the model.
    accumulation(data) {
      const place = data.number.map((_, index) => index);
      const name = (index) => (data.number[index] === undefined ? "" : data.number[index]);
      return [{
        data: [place, data.error, data.allowed],
        scales: { x: { time: false }, y: { distr: 3 } },
        axes: [axis("operation", { values: (_, places) => places.map(name) }),
          upright("error", { splits: decades, filter: (_, splits) => splits, values: (_, sizes) => sizes.map(exponent) })],
        series: [{ label: "operation",
          value: (_, index) => (none(index) ? "–" : `${name(index)} ${data.operation[index]}`) },
          line("error", "driver", { points: { show: true, size: 5 }, spanGaps: true }),
          line("allowed", "baseline", { dash: [6, 4], spanGaps: true })],
      }];
    },
    // x, label: the axis of all; panels: label and series (name, values) of each chart; marks: [at, words]; stepped.
    timeline(data) {
      const paths = data.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined;
      const key = `timeline ${++timelines}`;
      return data.panels.map((panel) => ({
        data: [data.x, ...panel.series.map((one) => one.values)],
        height: 200,
        padding: [16, 12, 0, 0],
        cursor: { drag: { x: false, y: false }, sync: { key, setSeries: false } },
        scales: { x: { time: false }, y: fromZero },
        axes: [axis(data.label, ticks(data.x)), upright(panel.label, ticks(panel.series.flatMap((one) => one.values)))],
        series: [{ label: data.label, value: (_, value) => short(value) },
          ...panel.series.map((one, index) => line(one.name, LINES[index % LINES.length],
            { paths, spanGaps: !data.stepped, dash: DASHES[index % DASHES.length] }))],
        hooks: { draw: [marker(data.marks)] },
      }));
    },
  };

  let timelines = 0;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const plots = new WeakMap(), seen = new Set();
  const state = (width) => [width, dark.matches, root.dataset.print === undefined, devicePixelRatio].join(" ");

  function draw(figure) {
    const place = figure.querySelector(".plot"), width = place.clientWidth;
    if (!width || figure.dataset.drawn === state(width)) return;
    for (const plot of plots.get(figure) || []) plot.destroy();
    place.replaceChildren();
    const found = kinds[figure.dataset.kind](JSON.parse(figure.querySelector("script").textContent));
    const boxes = found.map(() => place.appendChild(document.createElement("div")));
    const usual = { height: 240, cursor: { drag: { x: false, y: false } } };
    plots.set(figure, found.map(({ data, ...options }, index) =>
      new uPlot({ width: boxes[index].clientWidth, ...usual, ...options }, data, boxes[index])));
    figure.dataset.drawn = state(width);
  }
  const drawSeen = () => seen.forEach(draw);
  const drawAll = () => document.querySelectorAll("figure.chart").forEach(draw);

  const watch = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) seen.add(target); else seen.delete(target);
      if (isIntersecting) draw(target);
    }
  }, { rootMargin: "300px" });
  for (const figure of document.querySelectorAll("figure.chart")) watch.observe(figure);

  dark.addEventListener("change", drawSeen);
  addEventListener("resize", drawSeen);
  // Paper is white, whatever the theme: sheets that turn dark do so for :root:not([data-print]).
  addEventListener("beforeprint", () => { root.dataset.print = ""; drawAll(); });
  addEventListener("afterprint", () => { delete root.dataset.print; drawSeen(); });

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
    const link = event.target.closest('a[href^="#"]');
    if (link && link.hash === location.hash) openTarget();
  });
  openTarget();
}
