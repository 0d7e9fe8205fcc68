// Texts with {names} that are filled in, for all pages. Nothing here is ever read as HTML.

export const fill = (text, filled) => text.replace(/\{(\w+)\}/g, (_, name) => String(filled[name]));

// The same with elements in its gaps: an array of texts and elements.
export const fillWith = (text, filled) =>
  text.split(/(\{\w+\})/).flatMap((part) => (/^\{\w+\}$/.test(part) ? filled[part.slice(1, -1)] : part));
