// Chosen methods minus a reference, paired, over all domains and for each.
const MOST_COMPARED = 8;

const signed = (value) => {
  const text = Math.abs(value).toFixed(1);
  return text === "0.0" ? text : (value > 0 ? "+" : "\u2212") + text;
};

// Holm's correction of p-values, in their order.
function holm(values) {
  const order = values.map((_, place) => place).sort((a, b) => values[a] - values[b]);
  const corrected = [];
  order.reduce((largest, place, step) => {
    corrected[place] = Math.min(1, Math.max(largest, values[place] * (values.length - step)));
    return corrected[place];
  }, 0);
  return corrected;
}

function drawComparison(holder) {
  const data = JSON.parse(holder.querySelector("script").textContent);
  const count = data.names.length;
  const select = make("select");
  for (const name of data.names) select.append(make("option", name));
  const source = data.names.findIndex((name) => FACTS[name].source);
  select.selectedIndex = Math.max(source, 0);
  const line = make("label", "Gain in points over ");
  const place = make("div", "", { class: "scroll" });
  const note = make("p", "", { class: "soft" });
  line.append(select);
  holder.append(line, place, note);

  // Gain of i over j: [gain, low, high, p] for the mean and each domain.
  function pair(i, j) {
    const turned = ([gain, low, high, p]) => [-gain, high && -high, low && -low, p];
    if (i > j) return pair(j, i).map((one) => one && turned(one));
    const before = i * count - (i * (i + 1)) / 2;
    return data.pairs[before + j - i - 1];
  }

  function draw() {
    const reference = select.selectedIndex;
    const others = data.names.map((_, i) => i).filter((i) => i !== reference);
    const wanted = others.filter((i) => isShown(data.names[i]));
    const shown = wanted.slice(0, MOST_COMPARED);
    const found = shown.map((i) => pair(i, reference));
    const tested = found.flatMap((of) => of.filter((one) => one).map((one) => one[3]));
    const corrected = holm(tested);
    let next = 0;
    const cells = found.map((of) =>
      data.domains.map((_, row) => {
        const one = of[row];
        const cell = make("td", "–");
        if (!one) return cell;
        const [gain, low, high] = one;
        const differs = corrected[next++] < 0.05;
        const range = low === null ? "" : ` [${signed(low)}, ${signed(high)}]`;
        cell.textContent = `${signed(gain)}${range}${differs ? (gain > 0 ? " ↑" : " ↓") : ""}`;
        if (differs) cell.className = gain > 0 ? "good" : "bad";
        return cell;
      }),
    );
    const table = make("table", "", { "aria-label": `gain over ${data.names[reference]}` });
    const heads = table.createTHead().insertRow();
    heads.append(make("th", "domain", { scope: "col" }));
    for (const i of shown) heads.append(make("th", data.names[i], { scope: "col" }));
    const body = table.createTBody();
    data.domains.forEach((domain, row) => {
      const cellsOfRow = cells.map((of) => of[row]);
      body.insertRow().append(make("th", domain, { scope: "row" }), ...cellsOfRow);
    });
    place.replaceChildren(table);
    const left = wanted.length - shown.length;
    note.textContent =
      `Method minus ${data.names[reference]} on the same images and seeds, positive is better, with ` +
      `its 95 % interval. ↑, ↓: better, worse after Holm's correction for the ${tested.length} ` +
      "comparisons of this table." +
      (left ? ` The best ${shown.length} of ${wanted.length} methods; choose fewer above.` : "") +
      (data.left_out ? ` The ${data.left_out} methods with the worst means are not here.` : "");
  }

  select.addEventListener("change", draw);
  listeners.push(draw);
  draw();
}
