// Boxes that scroll show on which sides there is more: a shadow stands there, until the end is reached.

const BOXES = ".matrix-box, .scroll, .wide, .formula, pre";
const known = new WeakSet();

const sidesOf = (box) => ({
  "more-left": box.scrollLeft > 1,
  "more-right": box.scrollLeft + box.clientWidth < box.scrollWidth - 1,
  "more-above": box.scrollTop > 1,
  "more-below": box.scrollTop + box.clientHeight < box.scrollHeight - 1,
});
const mark = (boxes) => {
  const sides = boxes.map(sidesOf); // all are read before any is changed: one layout
  boxes.forEach((box, at) => {
    for (const [name, isThere] of Object.entries(sides[at])) box.classList.toggle(name, isThere);
  });
};
const observer = new ResizeObserver((entries) => {
  mark([...new Set(entries.map(({ target }) => target.closest(BOXES)).filter(Boolean))]);
});

// Boxes within an element, those that are new.
export const watchEdges = (element) => {
  for (const box of element.querySelectorAll(BOXES)) {
    if (known.has(box)) continue;
    known.add(box);
    observer.observe(box);
    if (box.firstElementChild) observer.observe(box.firstElementChild);
    box.addEventListener("scroll", () => mark([box]), { passive: true });
  }
};
