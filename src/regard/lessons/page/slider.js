// A slider of which a whole drag is one change to be undone.

import { make } from "./elements.js";
import { beginGesture, endGesture } from "./state.js";

// `range` has min, max and step; `set` gets the number at each move.
export const makeSlider = (name, range, set) => {
  const texts = Object.entries(range).map(([key, value]) => [key, String(value)]);
  const slider = make("input", { type: "range", name, ...Object.fromEntries(texts) });
  let moving = false;
  slider.addEventListener("input", () => {
    if (!moving) beginGesture();
    moving = true;
    set(Number(slider.value));
  });
  slider.addEventListener("change", () => {
    moving = false;
    endGesture();
  });
  return slider;
};
