// The data: what the page knows at once (`about`), and heads that are unpacked when somebody looks at them.

const about = JSON.parse(document.getElementById("about").textContent);
const tokens = about.labels.length;
const padding = new Set(about.padding);
const written = about.prompt === null ? 0 : tokens - about.prompt + (about.last === null ? 0 : 1); // tokens, by the model itself
const KEPT = Math.max(2, Math.floor(16e6 / tokens ** 2)); // heads that stay unpacked, of four bytes a cell: 64 MB
const HIDDEN = -1; // the value of a cell that may not be seen
const kept = new Map();
const masks = new Map();

async function unpack(id) {
  const raw = atob(document.getElementById(id).textContent);
  const bytes = Uint8Array.from(raw, (one) => one.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function maskOf(place) {
  const number = about.masks[place];
  if (!masks.has(number)) masks.set(number, unpack(`mask-${number}`));
  return masks.get(number);
}

/** {values: Float32Array (T x T), weights from 0 to 1 or HIDDEN; largest}, by the places of layer and head. */
function headAt(place, at) {
  const id = `head-${place}-${at}`;
  const found = kept.get(id) ?? unpackHead(place, id);
  kept.delete(id); // and in again as the newest
  kept.set(id, found);
  if (kept.size > KEPT) kept.delete(kept.keys().next().value);
  return found;
}

async function unpackHead(place, id) {
  const [bits, bytes] = await Promise.all([maskOf(place), unpack(id)]);
  const values = new Float32Array(tokens * tokens).fill(HIDDEN);
  const two = about.levels > 255;
  const cells = two ? bytes.length / 2 : bytes.length;
  let cell = 0, largest = 0;
  for (let i = 0; i < values.length; i++) {
    if (!(bits[i >> 3] & (128 >> (i & 7)))) continue;
    const root = (two ? bytes[cell] * 256 + bytes[cells + cell] : bytes[cell]) / about.levels;
    values[i] = root * root;
    largest = Math.max(largest, values[i]);
    cell++;
  }
  return {values, largest};
}

/** A weight in per cent, with the digits that it was kept with. */
function percent(weight) {
  const error = 100 * Math.sqrt(weight) / about.levels;
  return `${(100 * weight).toFixed(error < 0.005 ? 2 : error < 0.05 ? 1 : 0)}%`;
}

const byId = (id) => document.getElementById(id);

/** An element with text and children; text is never markup. */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}
