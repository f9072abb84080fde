// The text, shaded by the attention of one token, and a slider through the tokens.

let playing = null;

function buildReading() {
  const parts = [];
  const unread = (labels) => labels.map((one) => make("span", {class: "token unseen"}, one));
  const {before, after} = about;
  if (before.count) parts.push(...unread(before.labels), make("span", {class: "cut"}, `✂ not read: ${counted(before.count, "token")}`));
  about.labels.forEach((text, at) => {
    const kind = padding.has(at) ? " padding" : about.prompt !== null && at >= about.prompt ? " written" : "";
    parts.push(make("span", {class: `token${kind}`, "data-at": at}, text));
    if (about.breaks.includes(at)) parts.push(make("br"));
  });
  if (about.last !== null) parts.push(make("span", {class: "token written", "data-at": tokens}, about.last));
  if (after.count) parts.push(make("span", {class: "cut"}, `✂ end of the context; not read: ${counted(after.count, "token")}`), ...unread(after.labels));
  // If no token contains a space, as in a word-level vocabulary, tokens are separated by spaces.
  byId("text").replaceChildren(...(about.marks.space ? parts : parts.flatMap((one) => [one, " "])));
  byId("text").addEventListener("click", (event) => {
    const at = Number(event.target.dataset.at ?? NaN);
    if (at < tokens && !padding.has(at)) setRow(at);
  });
  byId("text").addEventListener("pointermove", (event) => {
    const at = Number(event.target.dataset.at ?? NaN);
    if (at < tokens && map.head) showTip(event, describeCell(state.row, at, map.head.values[state.row * tokens + at]));
    else hideTip();
  });
  byId("text").addEventListener("pointerleave", hideTip);
  const slider = byId("step");
  slider.max = lastRow();
  slider.addEventListener("input", () => setRow(Number(slider.value)));
  byId("step-back").addEventListener("click", () => setRow(state.row - 1));
  byId("step-on").addEventListener("click", () => setRow(state.row + 1));
  byId("play").addEventListener("click", () => (playing ? pause() : play()));
}

function lastRow() {
  let row = tokens - 1;
  while (row > 0 && padding.has(row)) row--;
  return row;
}

function play() {
  if (state.row >= lastRow()) setRow(firstRow());
  byId("play").textContent = "pause";
  playing = setInterval(() => (state.row < lastRow() ? setRow(state.row + 1) : pause()), 450);
}

function pause() {
  clearInterval(playing);
  playing = null;
  byId("play").textContent = "play";
}

function drawReading() {
  if (!map.head) return;
  const row = state.row, from = row * tokens, most = Math.max(...map.head.values.subarray(from, from + tokens), 1e-9);
  const generates = about.prompt !== null && row >= about.prompt - 1 && row < about.prompt - 1 + written;
  for (const item of byId("text").querySelectorAll("[data-at]")) {
    const at = Number(item.dataset.at), weight = at < tokens ? map.head.values[from + at] : HIDDEN;
    if (padding.has(at)) continue;
    const shade = weight >= 0 ? shadeOf(weight, most) : [255, 255, 255];
    item.style.background = css(shade);
    item.style.color = inkOn(shade);
    item.classList.toggle("from", at === row);
    item.classList.toggle("next", generates && at === row + 1);
    item.classList.toggle("later", weight === HIDDEN && !(generates && at === row + 1));
    if (at === row) keepSeen(item);
  }
  byId("step").value = row;
  describeStep(row, generates);
}

function keepSeen(item) {
  const box = byId("text"), top = item.offsetTop - box.offsetTop;
  if (top < box.scrollTop || top > box.scrollTop + box.clientHeight - 30) box.scrollTop = top - box.clientHeight / 2;
}

function describeStep(row, generates) {
  const values = map.head.values.subarray(row * tokens, (row + 1) * tokens);
  const best = [...values.keys()].filter((at) => values[at] > 0).sort((a, b) => values[b] - values[a]).slice(0, 3);
  const next = row + 1 < tokens ? about.labels[row + 1] : about.last;
  const parts = generates
    ? [`Generated token ${row - about.prompt + 2} of ${written}: after `, make("b", {}, about.labels[row]), " the model chose ", make("b", {}, next), ", attending to "]
    : [`Token ${row}: `, make("b", {}, about.labels[row]), " attends to "];
  best.forEach((at, i) => parts.push(i ? ", " : "", make("b", {}, about.labels[at]), ` ${percent(values[at])}`));
  byId("step-text").replaceChildren(...parts, best.length ? "" : "no token");
}
