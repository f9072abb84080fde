// Scores: of the selected head with the baseline (`even`), and of all heads, sortable by column.

const names = Object.keys(about.scores);
let sortedBy = "entropy";

const formatScore = (name, value) => (value === null ? "–" : name === "entropy" ? value.toFixed(2) : name === "distance" ? value.toFixed(1) : value.toFixed(3));

function buildTable() {
  const titles = {layer: "layer", head: "head", ...Object.fromEntries(names.map((name) => [name, about.scores[name].title]))};
  const head = make("tr", {}, ...Object.entries(titles).map(([name, title]) =>
    make("th", {"data-name": name}, name === "head" ? title : make("button", {title: about.scores[name]?.definition ?? "", onclick: () => sortTable(name)}, title))));
  byId("table").tHead.replaceChildren(head);
  byId("definitions").replaceChildren(...names.flatMap((name) => [make("dt", {}, about.scores[name].title), make("dd", {}, about.scores[name].definition)]),
    make("dt", {}, "mean"), make("dd", {}, "over the tokens with at least two visible tokens and, where the score names a kind of token, at least one visible token of that kind; w is an attention weight"));
  const over = about.surveyed
    ? `Scores over ${about.surveyed.texts.toLocaleString()} documents, each truncated to the context: ${about.surveyed.tokens.toLocaleString()} tokens. `
    : "Scores over this text. ";
  byId("scored").textContent = `${over}“even” is the baseline: a head with equal weights on all visible tokens. Click a column title to sort, a row to select its head.`;
  sortTable(sortedBy);
}

function sortTable(by) {
  sortedBy = by;
  const sign = by === "layer" || about.scores[by].smallest_first ? 1 : -1;
  const order = (a, b) => (by === "layer" ? a.layer - b.layer || a.head - b.head : (a[by] === null) - (b[by] === null) || sign * (a[by] - b[by]));
  const most = Object.fromEntries(names.map((name) => [name, Math.max(...about.summary.map((one) => one[name] ?? 0), 1e-9)]));
  const cells = (one) => names.map((name) =>
    make("td", {class: "score", style: `--part:${(100 * (one[name] ?? 0) / most[name]).toFixed(1)}%`}, formatScore(name, one[name])));
  const rows = [...about.summary].sort(order).map((one) => {
    const place = about.layers.indexOf(one.layer), at = about.heads[place]?.indexOf(one.head);
    return make("tr", {"data-place": place, "data-head": at, onclick: () => { choose(place, at); byId("controls").scrollIntoView(); }},
      make("td", {}, String(one.layer)), make("td", {}, String(one.head)), ...cells(one));
  });
  const even = groupEven(about.even).map(([layers, one]) => make("tr", {class: "even"}, make("td", {}, layers), make("td", {}, "even"), ...names.map((name) => make("td", {}, formatScore(name, one[name])))));
  byId("table").tBodies[0].replaceChildren(...rows, ...even);
  for (const cell of byId("table").tHead.rows[0].cells) {
    if (cell.dataset.name === by) cell.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    else cell.removeAttribute("aria-sort");
  }
  markTable();
}

/** Group layers with equal baseline scores, because they have the same mask. */
function groupEven(even) {
  const groups = new Map();
  for (const one of even) {
    const key = names.map((name) => one[name]).join();
    groups.set(key, [...(groups.get(key) ?? []), one]);
  }
  return [...groups.values()].map((group) => [group.length === even.length && group.length > 1 ? "all" : group.map((one) => one.layer).join(" "), group[0]]);
}

function markTable() {
  for (const row of byId("table").tBodies[0].rows) row.classList.toggle("on", Number(row.dataset.place) === state.layer && Number(row.dataset.head) === state.head);
}

/** Show the scores of the selected head next to the baseline. */
function drawNumbers() {
  const layer = about.layers[state.layer], number = about.heads[state.layer][state.head];
  const own = about.summary.find((one) => one.layer === layer && one.head === number), even = about.even.find((one) => one.layer === layer);
  const rows = names.map((name) => make("tr", {title: about.scores[name].definition}, make("th", {style: "text-align:left"}, about.scores[name].title),
    make("td", {}, formatScore(name, own[name])), make("td", {style: "color:var(--soft)"}, formatScore(name, even[name]))));
  const title = make("tr", {}, make("th", {style: "text-align:left"}, about.surveyed ? `score in ${about.surveyed.texts} documents` : "score in this text"), make("th", {}, "this head"), make("th", {style: "color:var(--soft)"}, "even"));
  byId("numbers").replaceChildren(make("table", {}, title, ...rows));
}
