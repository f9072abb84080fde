// Selected head and token, controls and keyboard. Every change goes through `choose` and `setRow`.

const state = {layer: 0, head: 0, row: 0};

function firstRow() {
  return about.prompt === null ? 0 : about.prompt - 1;
}

async function choose(place, at) {
  const layers = about.layers.length;
  place = (place + layers) % layers;
  const heads = about.heads[place].length;
  at = (at + heads) % heads;
  const moved = place !== state.layer;
  Object.assign(state, {layer: place, head: at});
  if (moved) fillHeads();
  byId("layer").value = place;
  byId("head").value = at;
  markOverview();
  markTable();
  drawNumbers();
  chooseHeads(lines.chosen.size > 1 && moved ? [...lines.chosen].filter((one) => one < heads) : [at]);
  await show();
}

async function show() {
  const {layer, head} = state, unpacked = await headAt(layer, head);
  if (layer !== state.layer || head !== state.head) return; // the selection has changed in the meantime
  const most = byId("stretch").checked ? unpacked.largest || 1 : 1;
  map.head = unpacked;
  map.image = paint(unpacked, most);
  byId("legend-most").textContent = most === 1 ? "100%" : percent(most);
  drawMap();
  drawReading();
  if (map.over && !byId("tip").hidden) byId("tip").replaceChildren(...describeHovered()); // same cell, new head
  document.body.dataset.shown = `${about.layers[layer]}.${about.heads[layer][head]}`;
}

function setRow(row) {
  state.row = Math.max(0, Math.min(lastRow(), row));
  drawMap();
  drawReading();
}

function fillHeads() {
  byId("head").replaceChildren(...about.heads[state.layer].map((number, at) => make("option", {value: at}, String(number))));
}

function showView(name) {
  for (const one of ["map", "lines"]) {
    byId(`${one}-view`).hidden = one !== name;
    byId(`show-${one}`).setAttribute("aria-pressed", one === name);
  }
  layOut();
  drawMap();
  chooseHeads([...lines.chosen]);
}

const readable = (bytes) => (bytes < 1e6 ? `${Math.round(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);
const counted = (number, what) => `${number.toLocaleString()} ${what}${number === 1 ? "" : "s"}`;

function showFacts() {
  const {layers, heads, before, after} = about;
  const same = heads.every((one) => one.length === heads[0].length);
  byId("title").textContent = about.title;
  byId("facts").textContent = `${counted(layers.length, "layer")}, ${same ? `${counted(heads[0].length, "head")} each` : counted(heads.flat().length, "head")}, ${counted(tokens - padding.size, "token")}.${about.marks.space ? " · is a space." : ""}${about.marks.line ? " ↵ is a line end." : ""}`;
  const notes = [];
  if (about.prompt !== null) notes.push(`The model generated ${counted(written, "token")}. From the last prompt token on, each row shows the attention with which the next token was chosen.`);
  if (before.count) notes.push(`The text is longer than the context. Not read at its start: ${counted(before.count, "token")}.`);
  if (after.count) notes.push(`The text is longer than the context. Not read at its end: ${counted(after.count, "token")}.`);
  if (padding.size) notes.push(`${padding.size} of ${tokens} positions are padding.`);
  byId("notes").replaceChildren(...notes.map((text) => make("li", {}, text)));
  const bytes = document.documentElement.outerHTML.length;
  byId("foot").textContent = `Made by Lilliput. File size: ${readable(bytes)}; the page loads no other files. Keys: ← → previous and next head, ↑ ↓ previous and next layer, k j previous and next token, m map, l lines.`;
}

function listen() {
  byId("layer").addEventListener("change", (event) => choose(Number(event.target.value), state.head));
  byId("head").addEventListener("change", (event) => choose(state.layer, Number(event.target.value)));
  byId("layer-back").addEventListener("click", () => choose(state.layer - 1, state.head));
  byId("layer-on").addEventListener("click", () => choose(state.layer + 1, state.head));
  byId("head-back").addEventListener("click", () => choose(state.layer, state.head - 1));
  byId("head-on").addEventListener("click", () => choose(state.layer, state.head + 1));
  byId("show-map").addEventListener("click", () => showView("map"));
  byId("show-lines").addEventListener("click", () => showView("lines"));
  byId("stretch").addEventListener("change", show);
  const keys = {
    ArrowLeft: () => choose(state.layer, state.head - 1), ArrowRight: () => choose(state.layer, state.head + 1),
    ArrowUp: () => choose(state.layer - 1, state.head), ArrowDown: () => choose(state.layer + 1, state.head),
    j: () => setRow(state.row + 1), k: () => setRow(state.row - 1), m: () => showView("map"), l: () => showView("lines"),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input[type=range], select") || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  window.addEventListener("resize", () => { map.cell = 0; layOut(); drawMap(); });
}

showFacts();
drawLegend();
byId("layer").replaceChildren(...about.layers.map((number, place) => make("option", {value: place}, String(number))));
fillHeads();
buildReading();
buildLines();
buildOverview();
buildTable();
listenToMap();
listen();
state.row = about.prompt === null ? Math.min(lastRow(), Math.floor(lastRow() / 2) + 1) : firstRow();
layOut();
choose(0, 0);
