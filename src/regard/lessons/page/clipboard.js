// Text that is copied; where the browser does not allow that, it is selected, so that the reader can.

// Whether it was copied.
export const copyText = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
};

export const selectText = (element, text) => {
  element.textContent = text;
  getSelection().selectAllChildren(element);
};
