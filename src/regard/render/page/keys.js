// The keyboard: everything that the mouse can do.

import { moveBy, showSingle, showWhole, zoomBy } from "./map.js";

const byId = (name) => document.getElementById(name);
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

const typing = ({ target }) => target.closest("input:not([type=checkbox]), select, textarea") !== null;

export const listenToKeys = ({ go, flip, choose, clear, jump }) => {
  const actions = {
    "+": () => zoomBy(2),
    "=": () => zoomBy(2),
    "-": () => zoomBy(0.5),
    0: showWhole,
    1: showSingle,
    h: () => go(0, -1),
    "[": () => go(0, -1),
    l: () => go(0, 1),
    "]": () => go(0, 1),
    k: () => go(-1, 0),
    j: () => go(1, 0),
    m: () => flip("pool"),
    c: () => flip("scale"),
    s: () => flip("sinks"),
    n: () => jump(1),
    N: () => jump(-1),
    "/": () => {
      byId("wanted").focus();
      byId("wanted").select();
    },
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.key === "Escape") {
      if (typing(event)) byId("map").focus();
      else clear();
      return;
    }
    if (typing(event)) return;
    const page = event.target === document.body && document.body.classList.contains("atlas");
    const onMap = event.target === byId("map") || page; // elsewhere arrows scroll the page
    if (ARROWS[event.key] && onMap) moveBy(...ARROWS[event.key], event.shiftKey);
    else if (event.key === "Enter" && onMap) choose();
    else if (Object.hasOwn(actions, event.key)) actions[event.key]();
    else return;
    event.preventDefault();
  });
};
