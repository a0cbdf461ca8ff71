// One filter and one picker of methods for the whole page.
const FACTS = JSON.parse(document.getElementById("facts").textContent);
const LABELS = Object.keys(FACTS);
const listeners = [];
const choice = { chosen: new Set(LABELS), words: "" };

const isShown = (label) =>
  choice.chosen.has(label) && label.toLowerCase().includes(choice.words.toLowerCase());

// The labels of a leaderboard, from the best on, without source.
function ranking(board) {
  const rows = board.querySelectorAll("tbody tr[data-method]:not(.source)");
  return [...rows].map((row) => row.dataset.method);
}

function bestFive() {
  const boards = [...document.querySelectorAll(".board")];
  const sources = LABELS.filter((label) => FACTS[label].source);
  return [...sources, ...boards.flatMap((board) => BEST.get(board).slice(0, 5))];
}

const BEST = new Map();

function addPicker(bar) {
  for (const board of document.querySelectorAll(".board")) BEST.set(board, ranking(board));
  if (LABELS.length < 2) return;
  const filter = make("input", "", { type: "search", placeholder: "Filter methods",
                                     "aria-label": "Filter methods" });
  const menu = make("details", "", { class: "menu" });
  const count = make("span", "", { role: "status" });
  const summary = make("summary", "Methods: ");
  const names = make("fieldset", "", { "aria-label": "Methods on this page" });
  const boxes = new Map();
  for (const label of LABELS) {
    const box = make("input", "", { type: "checkbox" });
    const line = make("label");
    box.checked = true;
    line.append(box, key(label), label);
    names.append(line);
    boxes.set(label, box);
    box.addEventListener("change", () => {
      choice.chosen[box.checked ? "add" : "delete"](label);
      update();
    });
  }
  const choose = (labels) => {
    choice.chosen = new Set(labels);
    for (const [label, box] of boxes) box.checked = choice.chosen.has(label);
    update();
  };
  const sets = [
    button("all", () => choose(LABELS), "all methods"),
    button("none", () => choose([]), "no method"),
    button("best five", () => choose(bestFive()), "the best five methods and Source"),
  ];
  function update() {
    const shown = LABELS.filter(isShown);
    count.textContent = `${shown.length} of ${LABELS.length}`;
    for (const row of document.querySelectorAll("tbody tr[data-method]")) {
      row.hidden = !isShown(row.dataset.method);
    }
    for (const table of document.querySelectorAll("table.shaded")) hideColumns(table);
    for (const listener of listeners) listener();
  }
  filter.addEventListener("input", () => {
    choice.words = filter.value;
    update();
  });
  summary.append(count);
  menu.append(summary, names);
  const group = make("span", "", { class: "sets" });
  group.append(...sets);
  bar.append(filter, menu, group);
  count.textContent = `${LABELS.length} of ${LABELS.length}`;
}

// The columns of a table of pairs that are methods, as its rows are.
function hideColumns(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    if (!head.dataset.method) return;
    const hidden = !isShown(head.dataset.method);
    if (head.hidden === hidden) return;
    head.hidden = hidden;
    for (const row of table.tBodies[0].rows) row.cells[column].hidden = hidden;
  });
}

// matplotlib's markers, as letters of a font.
const GLYPHS = { o: "●", s: "■", "^": "▲", D: "◆", v: "▼", P: "✚", X: "✖", "*": "★", "<": "◀", ">": "▶" };
const glyph = (label) => GLYPHS[FACTS[label].marker] || "";

// The line and the marker with which a method is drawn.
function key(label) {
  const { dash } = FACTS[label];
  const node = make("span", "", { class: "mark", "aria-hidden": "true" });
  const line = make("span", "", { class: "key" });
  line.style.borderTopColor = node.style.color = colour(label);
  line.style.borderTopStyle = dash.length === 0 ? "solid" : dash[0] > 2 ? "dashed" : "dotted";
  node.append(line, make("span", glyph(label), { class: "glyph" }));
  return node;
}

const dark = matchMedia("(prefers-color-scheme: dark)");

// The colour of a method; in the dark mixed with white, and source with the ink of the page.
function colour(label) {
  if (FACTS[label].source) return css("--ink");
  const parts = FACTS[label].colour.match(/\w\w/g).map((part) => parseInt(part, 16));
  const mixed = dark.matches ? parts.map((part) => Math.round(part + 0.35 * (255 - part))) : parts;
  return `rgb(${mixed.join(",")})`;
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
