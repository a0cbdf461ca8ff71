// Curves along the stream.
const MOST_COLOURED = 6;
const MOST_NAMES = 45; // domains whose names are at the upper axis

// The moving average over the last values of a domain, or over the round.
function smoothed(y, data, starts) {
  if (!data.window) return overRounds(y, data);
  return y.map((_, at) => {
    const from = Math.max(starts[at], at - data.window + 1);
    return mean(y, data.n, from, at + 1);
  });
}

function mean(y, n, from, to) {
  let [sum, count] = [0, 0];
  for (let at = from; at < to; at++) {
    if (y[at] === null) continue;
    sum += y[at] * n[at];
    count += n[at];
  }
  return count ? sum / count : null;
}

function overRounds(y, data) {
  const of = data.x.map((x) => data.bands.find((band) => x <= band.end).round);
  const means = new Map();
  for (const round of new Set(of)) {
    means.set(round, mean(y, data.n, of.indexOf(round), of.lastIndexOf(round) + 1));
  }
  return of.map((round) => means.get(round));
}

function cumulative(y, n) {
  let [sum, count] = [0, 0];
  return y.map((value, at) => {
    if (value !== null) {
      sum += value * n[at];
      count += n[at];
    }
    return count ? sum / count : null;
  });
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

const NAMES_HEIGHT = 70; // pixels above the curves

function drawNames(chart, labels) {
  const { ctx, bbox } = chart;
  ctx.save();
  ctx.font = `${12 * devicePixelRatio}px ${getComputedStyle(document.body).fontFamily}`;
  ctx.fillStyle = css("--ink");
  ctx.textAlign = "left";
  ctx.textBaseline = "alphabetic";
  for (const [x, name] of labels) {
    const at = chart.valToPos(x, "x", true);
    if (at < bbox.left || at > bbox.left + bbox.width) continue;
    ctx.save();
    ctx.translate(at, bbox.top - 6 * devicePixelRatio);
    ctx.rotate(-Math.PI / 5);
    ctx.fillText(name, 0, 0);
    ctx.restore();
  }
  ctx.restore();
}

function domainAt(bands, x) {
  const band = bands.find((one) => x <= one.end) || bands[bands.length - 1];
  const rounds = bands[bands.length - 1].round;
  return rounds > 1 ? `${band.domain}, round ${band.round}` : band.domain;
}

// Markers at a few places of each coloured line, at other places for each line.
const MARKERS = 12;

function drawMarkers(chart, lines) {
  const { ctx, data } = chart;
  ctx.save();
  ctx.font = `${9 * devicePixelRatio}px sans-serif`;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  lines.forEach(([label, series], place) => {
    if (!chart.series[series].show) return;
    ctx.fillStyle = colour(label);
    const every = Math.max(1, Math.floor(data[0].length / MARKERS));
    for (let at = 1 + Math.floor((place * every) / lines.length); at < data[0].length; at += every) {
      const value = data[series][at];
      if (value === null || value === undefined) continue;
      const [from, to] = [data[0][at - 1], data[0][at]];
      if (to < chart.scales.x.min || from > chart.scales.x.max) continue;
      const x = chart.valToPos((from + to) / 2, "x", true);
      ctx.fillText(glyph(label), x, chart.valToPos(value, "y", true));
    }
  });
  ctx.restore();
}

// Names of lines that are the same everywhere: "TENT, Pseudo-label".
function coinciding(lines) {
  const same = new Map();
  for (const [name, values] of lines) {
    const text = values.join();
    same.set(text, [...(same.get(text) || []), name]);
  }
  return [...same.values()].filter((names) => names.length > 1).map((names) => names.join(", "));
}

// Names of domains at their middle, or of rounds where there are many domains.
function bandNames(bands) {
  const starts = bands.map((_, place) => (place ? bands[place - 1].end : 0));
  if (bands.length <= MOST_NAMES) {
    return bands.map((band, place) => [(starts[place] + band.end) / 2, band.domain]);
  }
  const firsts = bands.map((band, place) => [starts[place], `round ${band.round}`]);
  return firsts.filter(([, name], place) => place === 0 || name !== firsts[place - 1][1]);
}

function drawCurves(holder) {
  const data = JSON.parse(document.getElementById(holder.dataset.stream).textContent);
  const board = holder.closest("section").querySelector(".board");
  const best = BEST.get(board).filter((label) => data.lines.some((line) => line.name === label));
  const source = data.lines.find((line) => FACTS[line.name].source);
  const starts = [];
  data.bands.forEach((band) => {
    const first = starts.length;
    for (let at = first; at < data.x.length && data.x[at] <= band.end; at++) starts.push(first);
  });
  const form = make("p", "", { class: "tools" });
  const what = make("select", "", { "aria-label": "value" });
  what.append(make("option", data.what), source ? make("option", "difference to Source") : "");
  const how = make("select", "", { "aria-label": "average" });
  const average = data.window ? "mean of the last batches in the domain" : "mean of each round";
  const single = data.every > 1 ? `each ${data.every} batches` : "each batch";
  for (const text of [average, single, "all images so far"]) how.append(make("option", text));
  form.append(what, " ", how);
  const place = make("div");
  const read = make("output");
  holder.append(form, place, read);
  const width = () => Math.max(280, holder.clientWidth);
  const labels = bandNames(data.bands);
  const averages = [
    (y) => smoothed(y, data, starts),
    (y) => y,
    (y) => cumulative(y, data.n),
  ];
  let chart = null;
  let values = [];
  let coloured = new Set();
  let at = 0;

  // With many methods the best few stand out, and the others are grey.
  function emphasised() {
    const shown = data.lines.map((line) => line.name).filter(isShown);
    if (shown.length <= MOST_COLOURED) return new Set(shown);
    const first = best.filter(isShown).slice(0, MOST_COLOURED - 1);
    return new Set([...first, ...shown.filter((label) => FACTS[label].source)]);
  }

  function compute() {
    const average = averages[how.selectedIndex];
    values = data.lines.map((line) => average(line.y));
    if (what.selectedIndex === 1) {
      const base = average(source.y);
      const minus = (value, k) => (value === null || base[k] === null ? null : value - base[k]);
      values = values.map((of) => of.map(minus));
    }
  }

  const axisText = () =>
    what.selectedIndex ? "points from Source (negative: better)" : `${data.what} in ${data.unit}`;

  function describe() {
    if (chart.cursor.idx == null) return;
    const k = Math.max(0, chart.cursor.idx - 1); // the first value is drawn from 0 on
    const told = data.lines
      .map((line, row) => [line, values[row][k]])
      .filter(([line, value]) => coloured.has(line.name) && value !== null)
      .sort((a, b) => a[1] - b[1])
      .map(([line, value]) => {
        const shown = what.selectedIndex ? signed(value) : value.toFixed(1);
        return `${line.name} ${shown}${line.resets.includes(k) ? " (reset)" : ""}`;
      });
    read.textContent = `${data.x[k]} images, ${domainAt(data.bands, data.x[k])}: ${told.join(", ")}`;
  }

  function build() {
    coloured = emphasised();
    compute();
    const ink = css("--ink");
    const axis = { stroke: ink, grid: { stroke: css("--line"), width: 0.5 }, ticks: { show: false } };
    // Grey lines first, so that the others lie on them.
    const order = data.lines.map((line, row) => [line, row]);
    order.sort((a, b) => coloured.has(a[0].name) - coloured.has(b[0].name));
    const series = order.map(([line]) => ({
      label: line.name,
      show: isShown(line.name),
      stroke: coloured.has(line.name) ? colour(line.name) : css("--grey"),
      width: coloured.has(line.name) ? 1.7 : 0.8,
      dash: coloured.has(line.name) ? FACTS[line.name].dash.map((part) => 2 * part) : [],
      paths: uPlot.paths.stepped({ align: -1 }),
      points: { show: false },
    }));
    const marked = order
      .map(([line], place) => [line.name, place + 1])
      .filter(([name]) => coloured.has(name));
    if (chart) chart.destroy();
    chart = new uPlot(
      {
        width: width(),
        height: 380,
        scales: { x: { time: false } },
        legend: { show: false },
        cursor: { drag: { x: true, y: false } },
        axes: [{ ...axis, label: "images seen" }, { ...axis, label: axisText() }],
        padding: [NAMES_HEIGHT, 80, null, null],
        series: [{ label: "images" }, ...series],
        hooks: {
          drawClear: [(one) => drawBands(one, data.bands)],
          draw: [(one) => drawMarkers(one, marked), (one) => drawNames(one, labels)],
          setCursor: [describe],
        },
      },
      [[0, ...data.x], ...order.map(([, row]) => [values[row][0], ...values[row]])],
      place,
    );
    const canvas = chart.root.querySelector("canvas");
    canvas.setAttribute("role", "img");
    const text = `${axisText()} (${how.value}) over images seen, one line per method`;
    canvas.setAttribute("aria-label", text);
    chart.root.tabIndex = 0;
    chart.root.setAttribute("role", "group");
    chart.root.setAttribute(
      "aria-label",
      "Curves: the left and right arrow keys move along the stream, Home and End to its ends",
    );
    chart.root.addEventListener("keydown", (event) => {
      const last = data.x.length - 1;
      const step = Math.max(1, Math.round(last / 50));
      const to = { ArrowLeft: at - step, ArrowRight: at + step, Home: 0, End: last }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      at = Math.min(Math.max(to, 0), last);
      chart.setCursor({ left: chart.valToPos(data.x[at], "x"), top: 10 });
    });
    keys.replaceChildren(
      ...data.lines
        .filter((line) => coloured.has(line.name))
        .map((line) => {
          const one = make("span");
          one.append(key(line.name), line.name);
          return one;
        }),
    );
    const grey = data.lines.filter((line) => isShown(line.name)).length - coloured.size;
    if (grey > 0) keys.append(make("span", `${grey} more methods in grey`));
    const drawn = data.lines.map((line, row) => [line.name, values[row]]);
    for (const names of coinciding(drawn.filter(([name]) => coloured.has(name)))) {
      keys.append(make("span", `One on another: ${names}`));
    }
    read.textContent =
      "Move over the curves, or focus them and use the arrow keys. Drag to zoom, double-click to " +
      "reset. Methods are chosen at the top of the page.";
  }

  const keys = make("p", "", { class: "keys" });
  form.after(keys);
  build();
  what.addEventListener("change", build);
  how.addEventListener("change", build);
  listeners.push(build);
  dark.addEventListener("change", build);
  new ResizeObserver(() => chart.setSize({ width: width(), height: 380 })).observe(holder);
}
