// A table of the page as SVG: each word, colour and line where the page has it.

import { css } from "../../render/page/colours.js";
import { draw } from "./elements.js";

const BASELINE = 0.78; // of the height of a line of text, from its top
const HATCHED = ".hidden-cell, .is-hidden, .real-hidden td";

const isPainted = (colour) => !/^(transparent|rgba\(.*, 0\))$/.test(colour);
const isSpokenOnly = (element) => element.closest("caption, .spoken") && getComputedStyle(element).clipPath !== "none";

// A word at a time, so that lines break where they do on the page.
const wordsOf = (node, { left, top }) => {
  const { fontSize, fontWeight, color } = getComputedStyle(node.parentElement);
  const range = document.createRange();
  return [...node.data.matchAll(/\S+/g)].map(({ 0: word, index }) => {
    range.setStart(node, index);
    range.setEnd(node, index + word.length);
    const rect = range.getBoundingClientRect();
    const place = { x: rect.left - left, y: rect.top - top + rect.height * BASELINE };
    return draw("text", { ...place, "font-size": fontSize, "font-weight": fontWeight, fill: color }, word);
  });
};

const boxOf = (element, { left, top }) => {
  const rect = element.getBoundingClientRect();
  const { backgroundColor } = getComputedStyle(element);
  const place = { x: rect.left - left, y: rect.top - top, width: rect.width, height: rect.height };
  const parts = isPainted(backgroundColor) ? [draw("rect", { ...place, fill: backgroundColor })] : [];
  if (element.tagName === "TR") {
    const y = place.y + place.height;
    parts.push(draw("line", { x1: place.x, x2: place.x + place.width, y1: y, y2: y, stroke: css("--rule") }));
  }
  if (element.matches(HATCHED)) {
    const [x1, y1, x2, y2] = [place.x, place.y + place.height, place.x + place.width, place.y];
    parts.push(draw("line", { x1, y1, x2, y2, stroke: css("--hatch") }));
  }
  return parts;
};

// A group with the size that it takes.
export const drawTable = (table) => {
  const frame = table.getBoundingClientRect();
  const group = draw("g");
  const walk = (element) => {
    if (isSpokenOnly(element) || !element.getClientRects().length) return;
    group.append(...boxOf(element, frame));
    for (const child of element.childNodes) {
      if (child.nodeType === Node.TEXT_NODE) group.append(...wordsOf(child, frame));
      else if (child.nodeType === Node.ELEMENT_NODE) walk(child);
    }
  };
  walk(table);
  return { group, width: frame.width, height: frame.height };
};
