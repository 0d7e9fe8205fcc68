// Colours of the map: lightness follows the weight, so that they are read without colour vision too.

import { view } from "./view.js";
import { head } from "./data.js";

export const DECADES = 3; // of the logarithmic scale
const RAMPS = { light: ["#ffffff", "#9ecae9", "#0072b2", "#00203f"], dark: ["#1d2229", "#1f5577", "#56b4e9", "#eaf6ff"] };
export const dark = matchMedia("(prefers-color-scheme: dark)");
export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const parts = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
const packed = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;

const tables = {};
export const ramp = () => {
  const name = dark.matches ? "dark" : "light";
  if (!tables[name]) {
    const stops = RAMPS[name].map(parts);
    tables[name] = Uint32Array.from({ length: 256 }, (_, level) => {
      const at = (level / 255) * (stops.length - 1);
      const low = Math.min(Math.floor(at), stops.length - 2);
      return packed(stops[low].map((part, i) => Math.round(part + (stops[low + 1][i] - part) * (at - low))));
    });
  }
  return tables[name];
};

// The largest cell at a step in this head, so that colours stay as one moves.
export const topOf = (step) => {
  const tops = ((view.sinks ? null : head.info.without) || head.info.tops)[view.pool];
  const known = Object.keys(tops).map(Number);
  return Math.max(tops[step] ?? tops[Math.max(...known.filter((one) => one <= step), Math.min(...known))], 1e-12);
};

// From a weight to 0 … 1.
export const level = (value, top) => {
  const share = Math.min(value / top, 1);
  if (!(share > 0) || share < view.floor) return 0;
  return view.scale === "log" ? Math.max(0, 1 + Math.log10(share) / DECADES) : share;
};

export const inkName = (step) => [dark.matches, view.scale, view.floor, topOf(step)].join();

// A tile as a small canvas, one pixel a cell; made anew where the colours have changed.
export const picture = (tile, step) => {
  const ink = inkName(step);
  if (tile.ink === ink) return tile.picture;
  const canvas = tile.picture || document.createElement("canvas");
  canvas.width = tile.columns;
  canvas.height = tile.rows;
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(tile.columns, tile.rows);
  const [pixels, table, top, unknown] = [new Uint32Array(image.data.buffer), ramp(), topOf(step), packed(parts(css("--unknown")))];
  tile.values.forEach((value, i) => { pixels[i] = Number.isNaN(value) ? unknown : table[Math.round(255 * level(value, top))]; });
  pen.putImageData(image, 0, 0);
  return Object.assign(tile, { picture: canvas, ink }).picture;
};

export const paintRamp = (canvas, step) => {
  const pen = canvas.getContext("2d");
  const [image, table] = [pen.createImageData(canvas.width, canvas.height), ramp()];
  new Uint32Array(image.data.buffer).forEach((_, i, pixels) => {
    const share = (i % canvas.width) / (canvas.width - 1);
    const value = view.scale === "log" ? 10 ** (DECADES * (share - 1)) : share;
    pixels[i] = table[Math.round(255 * level(value, 1))];
  });
  pen.putImageData(image, 0, 0);
  return topOf(step);
};
