// Sorting of tables, and buttons that copy or save a table or a figure. Without these scripts the
// page still shows every number and every figure.
const UNITS = { B: 1, kB: 1e3, MB: 1e6 };
const KINDS = { csv: "text/csv", md: "text/markdown", tex: "text/x-tex", pdf: "application/pdf",
                svg: "image/svg+xml" };
const NAMES = { csv: "CSV", md: "Markdown", tex: "LaTeX", pdf: "PDF", svg: "SVG" };

function make(tag, text = "", attributes = {}) {
  const node = document.createElement(tag);
  node.textContent = text;
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

function button(text, act, label = text) {
  const node = make("button", text, { type: "button", "aria-label": label });
  node.addEventListener("click", act);
  return node;
}

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

// Missing values stay at the end in both directions.
const isMissing = (text) => text === "" || text === "–" || text === "n/a";

function sort(table, head, column) {
  const ascending = head.getAttribute("aria-sort") !== "ascending";
  for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [row, row.cells[column].textContent.trim()]);
  rows.sort((a, b) => {
    if (isMissing(a[1]) || isMissing(b[1])) return isMissing(a[1]) - isMissing(b[1]);
    return (ascending ? 1 : -1) * compare(a[1], b[1]);
  });
  body.append(...rows.map(([row]) => row));
}

function makeSortable(table) {
  const heads = table.tHead.rows[table.tHead.rows.length - 1].cells;
  [...heads].forEach((head, column) => {
    head.replaceChildren(button(head.textContent, () => sort(table, head, column)));
  });
}

async function copy(text, said) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without permission, or on an insecure address.
    const area = make("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  said.textContent = "copied";
  setTimeout(() => (said.textContent = ""), 2000);
}

function save(name, content, kind) {
  const link = make("a", "", { download: name });
  link.href = URL.createObjectURL(new Blob([content], { type: kind }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// "Copy CSV Markdown LaTeX, save CSV Markdown LaTeX" below a table.
function addTableTools(holder) {
  const { name } = holder.dataset;
  const read = (form) => JSON.parse(holder.textContent)[form];
  const said = make("output");
  const tools = make("p", "", { class: "tools" });
  for (const [verb, act] of [
    ["copy", (form) => copy(read(form), said)],
    ["save", (form) => save(`${name}.${form}`, read(form), KINDS[form])],
  ]) {
    tools.append(`${verb} `);
    for (const form of ["csv", "md", "tex"]) {
      tools.append(button(NAMES[form], () => act(form), `${verb} ${name} as ${NAMES[form]}`), " ");
    }
  }
  tools.append(said);
  holder.after(tools);
}

function addFigureTools(figure) {
  const files = figure.querySelectorAll("script.file");
  if (!files.length) return;
  const tools = make("p", "save ", { class: "tools" });
  for (const file of files) {
    const { name } = file.dataset;
    const form = name.slice(name.lastIndexOf(".") + 1);
    const bytes = () => Uint8Array.from(atob(file.textContent), (c) => c.charCodeAt(0));
    tools.append(button(NAMES[form], () => save(name, bytes(), KINDS[form]), `save ${name}`), " ");
  }
  figure.append(tools);
}
