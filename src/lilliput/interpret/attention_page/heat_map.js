// The heat map of one head: rows are queries, columns are keys. An image has one pixel per cell; its visible part is drawn.

const map = {
  canvas: byId("map"), image: null, head: null,
  cell: 1, fit: 1, x: 0, y: 0, // pixels per cell; first visible column and row
  side: 0, left: 0, top: 0, over: null,
};

function layOut() {
  const width = map.canvas.parentElement.clientWidth;
  if (!width) return;
  const context = map.canvas.getContext("2d");
  context.font = "12px ui-monospace, Menlo, Consolas, monospace";
  const longest = Math.max(...about.labels.map((one) => context.measureText(one.slice(0, 14)).width));
  const margin = Math.min(longest + 10, width / 5);
  map.left = map.top = (width - margin) / tokens >= 8 || map.cell > map.fit ? margin : 34;
  map.side = Math.min(width - map.left, 900);
  map.fit = map.side / tokens;
  map.cell = Math.max(map.cell, map.fit);
  const scale = window.devicePixelRatio || 1;
  map.canvas.width = Math.round((map.left + map.side) * scale);
  map.canvas.height = Math.round((map.top + map.side) * scale);
  map.canvas.style.width = `${map.left + map.side}px`;
  map.canvas.style.height = `${map.top + map.side}px`;
  context.setTransform(scale, 0, 0, scale, 0, 0);
}

function keepInView() {
  const most = tokens - map.side / map.cell;
  map.x = Math.max(0, Math.min(most, map.x));
  map.y = Math.max(0, Math.min(most, map.y));
}

function drawMap() {
  if (!map.image || byId("map-view").hidden) return;
  keepInView();
  const context = map.canvas.getContext("2d"), {left, top, side, cell} = map;
  context.clearRect(0, 0, left + side, top + side);
  context.save();
  context.beginPath();
  context.rect(left, top, side, side);
  context.clip();
  context.imageSmoothingEnabled = cell * (window.devicePixelRatio || 1) < 1;
  context.drawImage(map.image, left - map.x * cell, top - map.y * cell, tokens * cell, tokens * cell);
  if (cell >= 9) drawGrid(context);
  if (about.prompt) drawPrompt(context);
  context.strokeStyle = "#c2570c";
  context.lineWidth = 1.5;
  context.strokeRect(left - map.x * cell, top + (state.row - map.y) * cell, tokens * cell, cell);
  if (map.over) {
    context.strokeStyle = "#22262b";
    context.strokeRect(left + (map.over.column - map.x) * cell, top + (map.over.row - map.y) * cell, cell, cell);
  }
  context.restore();
  drawLabels(context);
}

function drawGrid(context) {
  context.strokeStyle = "rgba(255,255,255,.7)";
  context.lineWidth = 1;
  context.beginPath();
  for (let at = Math.ceil(map.x); at <= map.x + map.side / map.cell; at++) {
    const x = map.left + (at - map.x) * map.cell;
    context.moveTo(x, map.top);
    context.lineTo(x, map.top + map.side);
  }
  for (let at = Math.ceil(map.y); at <= map.y + map.side / map.cell; at++) {
    const y = map.top + (at - map.y) * map.cell;
    context.moveTo(map.left, y);
    context.lineTo(map.left + map.side, y);
  }
  context.stroke();
}

function drawPrompt(context) {
  // Where the generated text begins.
  context.strokeStyle = "#c2570c";
  context.setLineDash([4, 3]);
  context.lineWidth = 1;
  const x = map.left + (about.prompt - map.x) * map.cell, y = map.top + (about.prompt - map.y) * map.cell;
  context.beginPath();
  context.moveTo(x, map.top);
  context.lineTo(x, map.top + map.side);
  context.moveTo(map.left, y);
  context.lineTo(map.left + map.side, y);
  context.stroke();
  context.setLineDash([]);
}

function drawLabels(context) {
  const {left, top, side, cell} = map;
  const every = cell >= 8 ? 1 : Math.ceil(8 / cell / 10) * 10 * (cell < 2 ? 5 : 1);
  context.font = `${Math.min(12, Math.max(8, cell * 0.85))}px ui-monospace, Menlo, Consolas, monospace`;
  context.textBaseline = "middle";
  const text = (at) => (every === 1 ? about.labels[at].slice(0, 14) : String(at));
  for (const across of [false, true]) {
    const first = across ? map.x : map.y;
    for (let at = Math.ceil((first - 0.5) / every) * every; at < Math.min(tokens, first + side / cell - 0.5); at += every) {
      const place = (at + 0.5 - first) * cell;
      const marked = !across && at === state.row;
      context.fillStyle = marked ? "#c2570c" : padding.has(at) ? "#9a9c9f" : "#3b4047";
      context.save();
      if (across) {
        context.translate(left + place, top - 5);
        context.rotate(-Math.PI / 2);
        context.textAlign = "left";
      } else {
        context.translate(left - 5, top + place);
        context.textAlign = "right";
      }
      context.fillText(text(at), 0, 0);
      context.restore();
    }
  }
}

function cellAt(event) {
  const box = map.canvas.getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left - map.left) / map.cell + map.x);
  const row = Math.floor((event.clientY - box.top - map.top) / map.cell + map.y);
  const inside = event.clientX - box.left >= map.left && event.clientY - box.top >= map.top;
  return inside && row >= 0 && column >= 0 && row < tokens && column < tokens ? {row, column} : null;
}

/** Return a sentence about a cell. */
function describeCell(row, column, weight) {
  const name = (at) => make("b", {}, about.labels[at]);
  if (padding.has(row) || padding.has(column)) return ["padding: masked"];
  if (weight === HIDDEN) return [name(row), ` (${row}) cannot attend to `, name(column), ` (${column}): masked`];
  return [name(row), ` (${row}) attends to `, name(column), ` (${column}): ${percent(weight)}`];
}

/** Return the sentence about the cell under the pointer. */
function describeHovered() {
  const {row, column} = map.over;
  return describeCell(row, column, map.head.values[row * tokens + column]);
}

function showTip(event, parts) {
  const tip = byId("tip");
  tip.replaceChildren(...parts);
  tip.hidden = false;
  const {width, height} = tip.getBoundingClientRect();
  const x = event.clientX + 16 + width > window.innerWidth ? event.clientX - width - 12 : event.clientX + 16;
  tip.style.left = `${Math.max(4, x)}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 16, window.innerHeight - height - 4))}px`;
}

const hideTip = () => { byId("tip").hidden = true; };

function zoom(factor, at = null) {
  const middle = at ?? {row: map.y + map.side / map.cell / 2, column: map.x + map.side / map.cell / 2};
  const had = map.cell;
  map.cell = Math.max(map.fit, Math.min(40, map.cell * factor));
  layOut();
  map.x = middle.column - (middle.column - map.x) * had / map.cell;
  map.y = middle.row - (middle.row - map.y) * had / map.cell;
  map.over = null;
  hideTip();
  drawMap();
}

function listenToMap() {
  let held = null;
  map.canvas.addEventListener("pointermove", (event) => {
    if (held && event.buttons && map.cell > map.fit) {
      map.x = held.x - (event.clientX - held.clientX) / map.cell;
      map.y = held.y - (event.clientY - held.clientY) / map.cell;
      held.moved = true;
    }
    map.over = cellAt(event);
    if (map.over && map.head) showTip(event, describeHovered());
    else hideTip();
    drawMap();
  });
  map.canvas.addEventListener("pointerleave", () => { map.over = held = null; hideTip(); drawMap(); });
  map.canvas.addEventListener("pointerdown", (event) => { held = {clientX: event.clientX, clientY: event.clientY, x: map.x, y: map.y}; });
  map.canvas.addEventListener("pointerup", (event) => {
    const cell = cellAt(event);
    if (cell && held && !held.moved && !padding.has(cell.row)) setRow(cell.row);
    held = null;
  });
  map.canvas.addEventListener("dblclick", (event) => zoom(2, cellAt(event)));
  map.canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return; // a plain wheel scrolls the page
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.25 : 0.8, cellAt(event));
  }, {passive: false});
  byId("zoom-in").addEventListener("click", () => zoom(1.6));
  byId("zoom-out").addEventListener("click", () => zoom(1 / 1.6));
  byId("zoom-fit").addEventListener("click", () => zoom(0));
}
