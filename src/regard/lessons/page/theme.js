// Light, dark, or as the system: the rules for dark colours apply always, never, or by the system.

const SYSTEM = "(prefers-color-scheme: dark)";
const dark = matchMedia(SYSTEM);
const listeners = [];
// The history of the browser remembers it for this tab, so that reloading keeps it and a link does not carry it.
let chosen = { light: "light", dark: "dark" }[history.state?.theme] ?? "system";
export const theme = () => chosen;

const darkRules = [...document.styleSheets]
  .flatMap((sheet) => [...sheet.cssRules])
  .filter((rule) => rule instanceof CSSMediaRule && rule.media.mediaText.includes("prefers-color-scheme: dark"));

const announce = () => listeners.forEach((listener) => listener());

// What is drawn on a canvas is drawn again.
export const onTheme = (listener) => listeners.push(listener);

const apply = (name) => {
  for (const rule of darkRules) rule.media.mediaText = { system: SYSTEM, dark: "all", light: "not all" }[name];
  document.documentElement.style.colorScheme = { system: "light dark", dark: "dark", light: "light" }[name];
  announce();
};
export const setTheme = (name) => {
  chosen = name;
  try {
    history.replaceState({ theme: chosen }, "");
  } catch {
    /* a sandboxed frame has no history of its own */
  }
  apply(chosen);
};
// On paper, dark ink.
export const printsLight = (isPrinting) => chosen !== "light" && apply(isPrinting ? "light" : chosen);

dark.addEventListener("change", () => chosen === "system" && announce());
if (chosen !== "system") apply(chosen);
