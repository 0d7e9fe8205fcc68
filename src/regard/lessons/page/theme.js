// Light, dark, or as the system: the rules for dark colours apply always, never, or by the system.

const SYSTEM = "(prefers-color-scheme: dark)";
const dark = matchMedia(SYSTEM);
const listeners = [];
let theme = "system";

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
  theme = name;
  apply(theme);
};
// On paper, dark ink.
export const printsLight = (isPrinting) => theme !== "light" && apply(isPrinting ? "light" : theme);

dark.addEventListener("change", () => theme === "system" && announce());
