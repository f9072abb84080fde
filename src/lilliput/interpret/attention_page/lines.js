// Lines between tokens: queries on the left, keys on the right, each selected head in its colour.

const STRONGEST = 1500; // lines drawn while the pointer is on no token
const FAINT = 0.01; // smaller weights have no line
const STEP = 18; // pixels per token
const lines = {chosen: new Set([0]), heads: new Map(), pointed: null}; // pointed: {side, at}

function buildLines() {
  for (const side of ["left", "right"]) {
    const list = byId(`lines-${side}`);
    list.replaceChildren(...about.labels.map((text, at) => make("li", {"data-at": at, class: padding.has(at) ? "padding" : "", title: text}, text)));
    list.addEventListener("pointerover", (event) => pointAt(side, event.target.dataset.at));
    list.addEventListener("click", (event) => { if (side === "left" && event.target.dataset.at && !padding.has(Number(event.target.dataset.at))) setRow(Number(event.target.dataset.at)); });
  }
  byId("lines-frame").addEventListener("pointerleave", () => pointAt(null));
  new ResizeObserver(() => { if (!byId("lines-view").hidden) drawLines(); }).observe(byId("lines-frame"));
}

function pointAt(side, at) {
  lines.pointed = side && at !== undefined ? {side, at: Number(at)} : null;
  drawLines();
}

function buildChips() {
  const numbers = about.heads[state.layer];
  byId("chips").replaceChildren(
    ...numbers.map((number, at) => {
      const on = lines.chosen.has(at), colour = headColour(at);
      return make("button", {"aria-pressed": on, style: `border-color:${colour};background:${on ? colour : "#fff"}`, onclick: () => toggleHead(at)}, `head ${number}`);
    }),
    make("button", {onclick: () => chooseHeads(numbers.map((_, at) => at))}, "all heads"),
    make("button", {onclick: () => chooseHeads([state.head])}, "one head"),
  );
}

function toggleHead(at) {
  const left = [...lines.chosen].filter((one) => one !== at);
  chooseHeads(left.length === lines.chosen.size ? [...left, at] : left.length ? left : [at]);
}

async function chooseHeads(chosen) {
  const layer = state.layer, wanted = new Set(chosen);
  lines.chosen = wanted;
  if (byId("lines-view").hidden) return;
  buildChips();
  const heads = await Promise.all([...wanted].map(async (at) => [at, await headAt(layer, at)]));
  if (wanted !== lines.chosen) return; // the selection has changed in the meantime
  lines.heads = new Map(heads);
  drawLines();
}

/** Return [head, row, column, weight] of each line to draw. */
function wantedLines() {
  const found = [], at = lines.pointed;
  for (const [head, {values}] of lines.heads) {
    const take = (row, column) => {
      const weight = values[row * tokens + column];
      if (weight >= FAINT) found.push([head, row, column, weight]);
    };
    for (let one = 0; one < tokens; one++) {
      if (at?.side === "left") take(at.at, one);
      else if (at) take(one, at.at);
      else for (let column = 0; column < tokens; column++) take(one, column);
    }
  }
  return found.sort((a, b) => b[3] - a[3]).slice(0, STRONGEST);
}

function drawLines() {
  const svg = byId("lines-svg"), width = svg.clientWidth || 200, height = tokens * STEP, wanted = wantedLines();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.style.height = `${height}px`;
  const parts = wanted.map(([head, row, column, weight]) => {
    const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
    const from = (row + 0.5) * STEP, to = (column + 0.5) * STEP;
    line.setAttribute("d", `M0 ${from}C${width * 0.4} ${from} ${width * 0.6} ${to} ${width} ${to}`);
    line.setAttribute("fill", "none");
    line.setAttribute("stroke", headColour(head));
    line.setAttribute("stroke-width", 1.6);
    line.setAttribute("stroke-opacity", Math.min(1, (lines.pointed ? 0.12 : 0.02) + weight).toFixed(3));
    return line;
  });
  svg.replaceChildren(...parts);
  markPointed(wanted);
  captionLines(wanted);
}

function markPointed(wanted) {
  const at = lines.pointed;
  for (const side of ["left", "right"]) {
    const other = new Map();
    if (at && at.side !== side) for (const [, row, column, weight] of wanted) {
      const place = side === "left" ? row : column;
      other.set(place, Math.max(weight, other.get(place) ?? 0));
    }
    for (const item of byId(`lines-${side}`).children) {
      const place = Number(item.dataset.at), weight = other.get(place);
      item.classList.toggle("on", at?.side === side && at.at === place);
      item.style.background = weight ? `rgba(194,87,12,${(0.5 * Math.sqrt(weight)).toFixed(3)})` : "";
    }
  }
}

function captionLines(wanted) {
  const caption = byId("lines-caption"), at = lines.pointed;
  if (!at) {
    const all = wanted.length < STRONGEST ? `All ${wanted.length} weights of at least 1%` : `The ${STRONGEST} largest weights`;
    caption.replaceChildren(`${all}. Left: queries; right: keys. Point at a token to see only its lines.`);
    return;
  }
  const best = wanted.slice(0, 3).map(([, row, column, weight]) => `${about.labels[at.side === "left" ? column : row]} ${percent(weight)}`);
  const verb = at.side === "left" ? "attends to" : "is attended to by";
  caption.replaceChildren(make("b", {class: "token"}, about.labels[at.at]), best.length ? ` ${verb} ${best.join(", ")}` : ` ${verb} no token with a weight of at least 1%`);
}
