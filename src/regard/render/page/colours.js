// Colours of the maps: lightness follows the weight, so that they are read without colour vision too.

export const DECADES = 3; // of the logarithmic scale
const RAMPS = {
  light: ["#ffffff", "#9ecae9", "#0072b2", "#00203f"],
  dark: ["#1d2229", "#1f5577", "#56b4e9", "#eaf6ff"],
};
export const dark = matchMedia("(prefers-color-scheme: dark)");
export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const channels = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
const pixelOf = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;

const ramps = {};
export const ramp = () => {
  const name = dark.matches ? "dark" : "light";
  if (!ramps[name]) {
    const stops = RAMPS[name].map(channels);
    ramps[name] = Uint32Array.from({ length: 256 }, (_, level) => {
      const at = (level / 255) * (stops.length - 1);
      const low = Math.min(Math.floor(at), stops.length - 2);
      return pixelOf(stops[low].map((part, i) => Math.round(part + (stops[low + 1][i] - part) * (at - low))));
    });
  }
  return ramps[name];
};

// From a weight to 0 … 1.
const level = (value, top, { scale, floor }) => {
  const share = Math.min(value / top, 1);
  if (!(share > 0) || share < floor) return 0;
  return scale === "log" ? Math.max(0, 1 + Math.log10(share) / DECADES) : share;
};

// One pixel for each value, to be drawn larger without smoothing; NaN is "not known".
export const paintCells = (canvas, rows, columns, values, top, how) => {
  Object.assign(canvas, { width: columns, height: rows });
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(columns, rows);
  const [pixels, table, unknown] = [new Uint32Array(image.data.buffer), ramp(), pixelOf(channels(css("--unknown")))];
  values.forEach((value, i) => {
    pixels[i] = Number.isNaN(value) ? unknown : table[Math.round(255 * level(value, top, how))];
  });
  pen.putImageData(image, 0, 0);
  return canvas;
};

// A tile as a small canvas, made anew where the colours have changed.
export const tilePicture = (tile, top, how) => {
  const ink = [dark.matches, how.scale, how.floor, top].join();
  if (tile.ink === ink) return tile.picture;
  const canvas = tile.picture || document.createElement("canvas");
  paintCells(canvas, tile.rows, tile.columns, tile.values, top, how);
  return Object.assign(tile, { picture: canvas, ink }).picture;
};

export const paintRamp = (canvas, how) => {
  const values = Float32Array.from({ length: canvas.width * canvas.height }, (_, i) => {
    const share = (i % canvas.width) / (canvas.width - 1);
    return how.scale === "log" ? 10 ** (DECADES * (share - 1)) : share;
  });
  paintCells(canvas, canvas.height, canvas.width, values, 1, how);
};
