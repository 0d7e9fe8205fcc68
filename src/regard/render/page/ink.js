// Colours of the maps: lightness follows the weight, so that they are read without colour vision too.

const dark = matchMedia("(prefers-color-scheme: dark)");
const RAMPS = { light: ["#ffffff", "#9ecae9", "#0072b2", "#00203f"], dark: ["#1d2229", "#1f5577", "#56b4e9", "#eaf6ff"] };

const parts = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));

const ramp = () => {
  const stops = RAMPS[dark.matches ? "dark" : "light"].map(parts);
  const table = new Uint8ClampedArray(256 * 4);
  for (let level = 0; level < 256; level++) {
    const place = (level / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    for (let part = 0; part < 3; part++) {
      table[level * 4 + part] = stops[low][part] + (stops[low + 1][part] - stops[low][part]) * (place - low);
    }
    table[level * 4 + 3] = 255;
  }
  return table;
};

// A small canvas, one pixel a cell, to be drawn larger without smoothing.
const bitmap = (rows, columns, level, table) => {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    image.data.set(table.subarray(level(i) * 4, level(i) * 4 + 4), i * 4);
  }
  pen.putImageData(image, 0, 0);
  return canvas;
};

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
