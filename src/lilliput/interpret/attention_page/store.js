// The data: `about`, parsed at once, and the weights of heads, unpacked when a head is shown.

const about = JSON.parse(document.getElementById("about").textContent);
const tokens = about.labels.length;
const padding = new Set(about.padding);
const written = about.prompt === null ? 0 : tokens - about.prompt + (about.last === null ? 0 : 1); // generated tokens
const KEPT = Math.max(2, Math.floor(16e6 / tokens ** 2)); // heads that stay unpacked: 64 MB at four bytes per cell
const HIDDEN = -1; // the value of a masked cell
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

/** Return {values: Float32Array (T x T) of weights from 0 to 1 or HIDDEN, largest}, by the indices of layer and head. */
function headAt(place, at) {
  const id = `head-${place}-${at}`;
  const head = kept.get(id) ?? unpackHead(place, id);
  kept.delete(id); // insert it again as the most recently used
  kept.set(id, head);
  if (kept.size > KEPT) kept.delete(kept.keys().next().value);
  return head;
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

/** Format a weight in per cent, with the digits that are exact. */
function percent(weight) {
  const error = 100 * Math.sqrt(weight) / about.levels;
  return `${(100 * weight).toFixed(error < 0.005 ? 2 : error < 0.05 ? 1 : 0)}%`;
}

const byId = (id) => document.getElementById(id);

/** Create an element with attributes and children; strings become text, never markup. */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}
