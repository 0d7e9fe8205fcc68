// The shape of the line from one word to another, as elements of an SVG.

const SVG = "http://www.w3.org/2000/svg";

// From word to word: in a line above or below it, by slot; between lines as an S.
export const curve = (from, to, slot, origin) => {
  const shift = slot === "a" ? -3 : 3;
  const x1 = from.left + from.width / 2 - origin.left + shift;
  const x2 = to.left + to.width / 2 - origin.left + (from === to ? 14 : shift);
  const sameLine = to.top < from.bottom && from.top < to.bottom;
  const above = sameLine ? slot === "a" : to.top < from.top;
  const y1 = (above ? from.top : from.bottom) - origin.top;
  const y2 = (sameLine === above ? to.top : to.bottom) - origin.top;
  const rise = Math.min(16 + Math.abs(x1 - x2) * 0.16, 62) * (above ? -1 : 1);
  const bend1 = sameLine ? y1 + rise : (y1 + y2) / 2;
  const bend2 = sameLine ? y2 + rise : (y1 + y2) / 2;
  const tip = (sameLine ? above : y2 > y1) ? -1 : 1; // where the line comes from, seen from its end
  return { path: `M${x1},${y1}C${x1},${bend1} ${x2},${bend2} ${x2},${y2 + tip * 5}`, x: x2, y: y2, tip };
};

export const svgPath = (attributes) => {
  const element = document.createElementNS(SVG, "path");
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
};
