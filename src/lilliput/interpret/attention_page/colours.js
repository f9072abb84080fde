// Colours of weights, the same in every view: by the square root of the weight, so that small weights are visible.

const STOPS = [[255, 255, 255], [198, 219, 239], [107, 174, 214], [33, 113, 181], [8, 40, 94]];
const UNSEEN_COLOUR = [232, 229, 221];
const PADDING_COLOUR = [74, 79, 87];
const HEAD_COLOURS = ["#1f5a96", "#c2570c", "#2f7d4f", "#a4378a", "#8a6d00", "#c0392b", "#148a9c", "#6a4fb3", "#7a5230", "#5b6b7a", "#d0588f", "#4f7f00"];

function mix(share) {
  const at = Math.min(1, Math.max(0, share)) * (STOPS.length - 1);
  const low = Math.min(STOPS.length - 2, Math.floor(at));
  return STOPS[low].map((one, i) => Math.round(one + (STOPS[low + 1][i] - one) * (at - low)));
}

const SHADES = Array.from({length: 256}, (_, i) => mix(i / 255));
const shadeOf = (weight, most) => SHADES[Math.min(255, Math.round(255 * Math.sqrt(weight / most)))];
const css = (colour) => `rgb(${colour.join()})`;
const headColour = (at) => HEAD_COLOURS[at % HEAD_COLOURS.length];
const inkOn = (colour) => (0.3 * colour[0] + 0.59 * colour[1] + 0.11 * colour[2] > 140 ? "#22262b" : "#fff");

/** Return a canvas with one pixel per cell. */
function paint(head, most) {
  const canvas = make("canvas", {width: tokens, height: tokens});
  const context = canvas.getContext("2d");
  const image = context.createImageData(tokens, tokens);
  for (let i = 0; i < head.values.length; i++) {
    const weight = head.values[i];
    const padded = padding.size && (padding.has(i % tokens) || padding.has(Math.floor(i / tokens)));
    const [red, green, blue] = weight >= 0 ? shadeOf(weight, most) : padded ? PADDING_COLOUR : UNSEEN_COLOUR;
    image.data.set([red, green, blue, 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

function drawLegend() {
  const ramp = SHADES.filter((_, i) => i % 15 === 0).map(css).join();
  const part = (style, text, kind = "") => make("span", {}, make("i", {class: kind, style: `background:${style}`}), text);
  const parts = [
    make("span", {}, "0% ", make("i", {class: "scale", style: `background:linear-gradient(to right,${ramp})`}), make("span", {id: "legend-most"}, "100%")),
    part(css(UNSEEN_COLOUR), "masked"),
  ];
  if (padding.size) parts.push(part(css(PADDING_COLOUR), "padding"));
  parts.push(make("span", {}, `rows: queries; columns: keys${about.prompt === null ? "" : "; dashed: generated text begins"}`));
  byId("legend").replaceChildren(...parts);
}
