// Sorting and filtering of tables, and interactive curves. Without this script the page still
// shows every number and every figure.
"use strict";
(() => {
  const UNITS = { B: 1, kB: 1e3, MB: 1e6 };

  // The number in a table cell: "30.4 ± 0.2", "−1.2", "1,024", "12.3 kB"; NaN for text.
  function number(text) {
    const plain = text.trim().replace("\u2212", "-").replace(/[[,†]/g, "").replace(/^</, "");
    const found = /^[-+]?\d+(\.\d+)?(e[-+]?\d+)?/i.exec(plain);
    const unit = /(kB|MB|B)$/.exec(plain);
    return found ? parseFloat(found[0]) * (unit ? UNITS[unit[1]] : 1) : NaN;
  }

  function compare(a, b) {
    const [x, y] = [number(a), number(b)];
    if (isNaN(x) && isNaN(y)) return a.localeCompare(b);
    return x - y;
  }

  function sort(table, head, column) {
    const ascending = head.getAttribute("aria-sort") !== "ascending";
    for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [row, row.cells[column].textContent.trim()]);
    // Missing values stay at the end in both directions.
    const missing = ([, text]) => text === "" || text === "–" || text === "n/a";
    rows.sort((a, b) => {
      if (missing(a) || missing(b)) return missing(a) - missing(b);
      return (ascending ? 1 : -1) * compare(a[1], b[1]);
    });
    body.append(...rows.map(([row]) => row));
  }

  function makeSortable(table) {
    const heads = table.tHead.rows[table.tHead.rows.length - 1].cells;
    [...heads].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => sort(table, head, column));
    });
  }

  function makeFilterable(table) {
    if (table.tBodies[0].rows.length < 4) return;
    const label = document.createElement("label");
    const input = document.createElement("input");
    const count = document.createElement("span");
    label.className = "filter";
    input.type = "search";
    count.setAttribute("role", "status");
    label.append("Filter rows ", input, count);
    table.parentElement.before(label);
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase();
      const rows = [...table.tBodies[0].rows];
      for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
      const shown = rows.filter((row) => !row.hidden).length;
      count.textContent = wanted ? `${shown} of ${rows.length}` : "";
    });
  }

  const LIGHT = ["#0072B2", "#B87A00", "#009E73", "#D55E00", "#2E8BC0", "#A8588A"];
  const DARK = ["#56B4E9", "#E69F00", "#3CC79B", "#FF8A4C", "#9AD1F5", "#E39BC4"];
  const DASHES = [[], [8, 3], [2, 3], [8, 3, 2, 3]];
  const SHOWN_AT_FIRST = 6;

  function style(place, line) {
    if (line.source) return { colour: css("--soft"), dash: [] };
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const colours = dark ? DARK : LIGHT;
    return { colour: colours[place % 6], dash: DASHES[Math.floor(place / 6) % 4] };
  }

  function css(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  // Every second domain has a tinted background.
  function drawBands(chart, bands) {
    const { ctx, bbox } = chart;
    ctx.save();
    ctx.fillStyle = css("--bands");
    let start = 0;
    bands.forEach((band, place) => {
      const [left, right] = [start, band.end].map((x) => {
        const at = chart.valToPos(x, "x", true);
        return Math.min(Math.max(at, bbox.left), bbox.left + bbox.width);
      });
      if (place % 2) ctx.fillRect(left, bbox.top, right - left, bbox.height);
      start = band.end;
    });
    ctx.restore();
  }

  function domainAt(bands, x) {
    const band = bands.find((one) => x <= one.end) || bands[bands.length - 1];
    const rounds = bands[bands.length - 1].round;
    return rounds > 1 ? `${band.domain}, round ${band.round}` : band.domain;
  }

  function draw(holder) {
    const data = JSON.parse(document.getElementById(holder.dataset.stream).textContent);
    const place = document.createElement("div");
    const read = document.createElement("output");
    const names = document.createElement("fieldset");
    const legend = document.createElement("legend");
    legend.textContent = "Methods drawn";
    names.append(legend);
    const ink = css("--ink");
    const axis = { stroke: ink, grid: { stroke: css("--line"), width: 0.5 }, ticks: { show: false } };
    const series = data.lines.map((line, number) => {
      const { colour, dash } = style(number, line);
      const show = number < SHOWN_AT_FIRST;
      return { label: line.name, stroke: colour, width: 1.6, dash, show, points: { show: false } };
    });

    const reset = (line, at) => (line.resets.includes(at) ? " (reset)" : "");

    function describe(chart) {
      const at = chart.cursor.idx;
      if (at == null) return;
      const values = data.lines
        .filter((_, number) => chart.series[number + 1].show)
        .map((line) => `${line.name} ${line.y[at].toFixed(1)}${reset(line, at)}`);
      const where = domainAt(data.bands, data.x[at]);
      read.textContent = `${data.x[at]} images, ${where}: ${values.join(", ")}`;
    }

    holder.append(names, place, read);
    const width = () => Math.max(280, holder.clientWidth);
    const chart = new uPlot(
      {
        width: width(),
        height: 340,
        scales: { x: { time: false } },
        legend: { show: false },
        cursor: { drag: { x: true, y: false } },
        axes: [{ ...axis, label: "images seen" }, { ...axis, label: data.axis }],
        series: [{ label: "images" }, ...series],
        hooks: { drawClear: [(chart) => drawBands(chart, data.bands)], setCursor: [describe] },
      },
      [data.x, ...data.lines.map((line) => line.y)],
      place,
    );
    const canvas = chart.root.querySelector("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${data.axis} over images seen, one line per method`);
    chart.root.tabIndex = 0;
    chart.root.setAttribute("role", "group");
    chart.root.setAttribute(
      "aria-label",
      "Curves: the left and right arrow keys move along the stream, Home and End to its ends",
    );
    let at = 0;
    chart.root.addEventListener("keydown", (event) => {
      const last = data.x.length - 1;
      const step = Math.max(1, Math.round(last / 50));
      const to = { ArrowLeft: at - step, ArrowRight: at + step, Home: 0, End: last }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      at = Math.min(Math.max(to, 0), last);
      chart.setCursor({ left: chart.valToPos(data.x[at], "x"), top: 10 });
    });
    read.textContent =
      "Move over the curves, or focus them and use the arrow keys. Drag to zoom, double-click to reset." +
      (data.every > 1 ? ` One batch in ${data.every} is drawn.` : "");

    data.lines.forEach((line, number) => {
      const label = document.createElement("label");
      const box = document.createElement("input");
      const key = document.createElement("span");
      const { colour, dash } = style(number, line);
      box.type = "checkbox";
      box.checked = series[number].show;
      key.className = "key";
      key.style.borderTopColor = colour;
      key.style.borderTopStyle = dash.length === 0 ? "solid" : dash[0] > 2 ? "dashed" : "dotted";
      label.append(box, key, line.name);
      names.append(label);
      box.addEventListener("change", () => chart.setSeries(number + 1, { show: box.checked }));
    });
    new ResizeObserver(() => chart.setSize({ width: width(), height: 340 })).observe(holder);
  }

  // A link to something inside a closed element opens the element.
  function openTarget() {
    let node = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    makeSortable(table);
    makeFilterable(table);
  }
  for (const holder of document.querySelectorAll("[data-stream]")) draw(holder);
  addEventListener("hashchange", openTarget);
  openTarget();
})();
