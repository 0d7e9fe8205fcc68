// A step as a picture: its matrices drawn anew from their values and labels, in the colours of the page.

import { css } from "../../render/page/colours.js";
import { colourOf, largestOf } from "./cell_colours.js";
import { indexed } from "./formula.js";
import { download } from "./download.js";
import { format } from "./number_text.js";
import { drawTable } from "./table_picture.js";

const SVG = "http://www.w3.org/2000/svg";
const FAMILY = 'system-ui, "Noto Sans", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", sans-serif';
const [WIDTH, LINE, GAP, EDGE] = [960, 26, 28, 20]; // of the page of a picture
const BOLD = 1.12; // times as wide as text of usual weight
const MOST_SHARE = 0.45; // of a colour behind a number
const INHERITED = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-weight", "text-anchor"];

const pen = document.createElement("canvas").getContext("2d");
const widthOf = (text, size = 14) => {
  pen.font = `${size}px ${FAMILY}`;
  return pen.measureText(text).width;
};

const node = (name, attributes, text = null) => {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  return element;
};
const label = (text, x, y, attributes = {}) =>
  node("text", { x, y, "font-size": 14, fill: css("--ink"), ...attributes }, text);

// "W_Q" with its index below the line.
const titleParts = (title) =>
  indexed(title).flatMap((part) => {
    if (typeof part === "string") return part ? [node("tspan", {}, part)] : [];
    const shift = part.tagName === "SUB" ? 4 : -5;
    // what follows returns to the line by a space without width
    return [node("tspan", { dy: shift, "font-size": 10 }, part.textContent), node("tspan", { dy: -shift }, "\u200b")];
  });

const colourText = (parts) => `rgb(${parts.join()})`;
const behind = (value, largest, paint) => {
  if (paint === "none") return css("--page");
  const [paper, colour] = [colourOf(0, 1, paint), colourOf(value, largest, paint)];
  return colourText(paper.map((part, at) => Math.round(part + (colour[at] - part) * MOST_SHARE)));
};

// A group with the size that it takes.
const drawMatrix = (matrix) => {
  const { values, options } = matrix;
  const [rows, columns] = [values.length, values[0].length];
  const isStrip = columns > 16;
  const isHidden = options.hidden ?? (() => false);
  const text = (row, column) =>
    isHidden(row, column) && options.paint !== "weight" ? "−∞" : format(values[row][column]);
  const labels = values.map((_, row) => matrix.rowLabel(row));
  const left = Math.max(...labels.map((name) => widthOf(name))) + 10;
  const widths = Array.from({ length: columns }, (_, column) =>
    isStrip
      ? Math.min(14, (WIDTH - 2 * EDGE - left) / columns)
      : Math.max(40, widthOf(matrix.columnLabel(column)) + 10, ...values.map((_, row) => widthOf(text(row, column)) + 14)),
  );
  const starts = widths.map((_, column) => left + widths.slice(0, column).reduce((sum, width) => sum + width, 0));
  const group = node("g", {});
  const title = `${options.title}   ${rows} × ${columns}`;
  const symbol = options.symbol ? css(`--${options.symbol}`) : css("--ink");
  const heading = label("", 0, 14, { fill: symbol, "font-weight": 600 });
  heading.append(...titleParts(title));
  group.append(heading);
  let top = 22;
  if (!isStrip) {
    starts.forEach((x, column) => {
      const middle = { "text-anchor": "middle", fill: css("--soft"), "font-size": 13 };
      group.append(label(matrix.columnLabel(column), x + widths[column] / 2, top + 14, middle));
    });
    top += 20;
  }
  const whole = options.paint === "weight" ? 1 : largestOf(values);
  values.forEach((line, row) => {
    const largest = options.ownScales ? largestOf([line]) : whole;
    const y = top + row * LINE;
    const chosen = row === options.chosen;
    const name = { "text-anchor": "end", fill: css(chosen ? "--ink" : "--soft"), "font-weight": chosen ? 700 : 400 };
    group.append(label(labels[row], left - 6, y + 18, name));
    line.forEach((value, column) => {
      const fill = isStrip ? colourText(colourOf(value, largest, options.paint)) : behind(value, largest, options.paint);
      const cell = { x: starts[column], y, width: widths[column] - (isStrip ? 0 : 2), height: LINE - 2, rx: isStrip ? 0 : 3 };
      group.append(node("rect", { ...cell, fill, stroke: isStrip ? "none" : css(chosen ? "--chosen-edge" : "--rule") }));
      if (isStrip) {
        const [x1, x2, middle] = [cell.x + cell.width * 0.2, cell.x + cell.width * 0.8, y + LINE / 2 - 1];
        if (value < 0) group.append(node("line", { x1, x2, y1: middle, y2: middle, stroke: css("--page") }));
        return;
      }
      const masked = isHidden(row, column);
      if (masked) {
        const [x1, y1, x2, y2] = [cell.x, y + LINE - 2, cell.x + cell.width, y];
        group.append(node("line", { x1, y1, x2, y2, stroke: css("--hatch") }));
      }
      const end = { "text-anchor": "end", fill: css(masked ? "--soft" : "--ink") };
      group.append(label(text(row, column), starts[column] + widths[column] - 8, y + 17, end));
    });
  });
  if (isStrip && options.chosen !== null) {
    const frame = { x: left, y: top + options.chosen * LINE, width: starts.at(-1) + widths.at(-1) - left, height: LINE - 2 };
    group.append(node("rect", { ...frame, fill: "none", stroke: css("--chosen-edge"), "stroke-width": 2 }));
  }
  return { group, width: Math.max(starts.at(-1) + widths.at(-1), BOLD * widthOf(title) + 10), height: top + rows * LINE };
};

// A drawing of the page itself, with the colours that it has there.
const copyDrawing = (drawing) => {
  const copy = drawing.cloneNode(true);
  const [originals, copies] = [drawing, copy].map((root) => [root, ...root.querySelectorAll("*")]);
  originals.forEach((original, at) => {
    const style = getComputedStyle(original);
    for (const name of INHERITED) copies[at].setAttribute(name, style.getPropertyValue(name));
  });
  const { width, height } = drawing.getBoundingClientRect();
  const group = node("g", {});
  Object.entries({ width, height }).forEach(([name, value]) => copy.setAttribute(name, value));
  group.append(copy);
  return { group, width, height };
};

// What a drawing or a table is called on the page: the text under or over it.
const nameOf = (element) => {
  const caption = element.closest("figure")?.querySelector("figcaption");
  const heading = element.closest("div, section, figure")?.querySelector(":scope > h3, :scope > h4");
  return (caption ?? heading)?.innerText.trim() ?? "";
};
const named = (part, name) => {
  if (!name) return part;
  const group = node("g", {});
  part.group.setAttribute("transform", `translate(0 ${LINE})`);
  group.append(label(name, 0, 14, { "font-weight": 600 }), part.group);
  return { group, width: Math.max(part.width, BOLD * widthOf(name)), height: part.height + LINE };
};
const drawn = (element) => {
  if (element.matrix) return drawMatrix(element.matrix);
  const isTable = element.tagName === "TABLE";
  return named(isTable ? drawTable(element) : copyDrawing(element), nameOf(element));
};
const isShown = (element) => element.getClientRects().length > 0;

// The SVG of a step, with its size. Parts flow in lines, as on the page.
export const pictureOf = (title, body) => {
  const root = node("svg", { xmlns: SVG, "font-family": FAMILY });
  const paper = node("rect", { x: 0, y: 0, fill: css("--page") });
  root.append(paper, label(title, EDGE, EDGE + 18, { "font-size": 20, "font-weight": 600 }));
  const elements = [
    ...body.querySelectorAll("figure.matrix, svg:not([aria-hidden]), table:not(figure.matrix table)"),
  ].filter(isShown);
  let [x, y, height, width] = [EDGE, EDGE + 40, 0, EDGE + BOLD * widthOf(title, 20)];
  for (const part of elements.map(drawn)) {
    if (x > EDGE && x + part.width > WIDTH - EDGE) [x, y, height] = [EDGE, y + height + GAP, 0];
    part.group.setAttribute("transform", `translate(${x} ${y})`);
    root.append(part.group);
    width = Math.max(width, x + part.width);
    x += part.width + GAP;
    height = Math.max(height, part.height);
  }
  const size = { width: Math.ceil(width + EDGE), height: Math.ceil(y + height + EDGE) };
  for (const element of [root, paper]) {
    for (const [name, value] of Object.entries(size)) element.setAttribute(name, value);
  }
  root.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
  return { text: new XMLSerializer().serializeToString(root), ...size };
};

const asPng = async ({ text, width, height }) => {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: 2 * width, height: 2 * height });
  canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
};

export const savePicture = async (kind, name, title, body) => {
  const picture = pictureOf(title, body);
  const blob = kind === "svg" ? new Blob([picture.text], { type: "image/svg+xml" }) : await asPng(picture);
  download(blob, `${name}.${kind}`);
};
