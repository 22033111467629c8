// What the viewer remembers in this browser: toggles, sizes, light or dark.

const PREFIX = "ocrstore.";

export function load(name, otherwise) {
  try {
    const text = localStorage.getItem(PREFIX + name);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise; // storage may be forbidden
  }
}

export function save(name, value) {
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // then it is remembered until the page is closed
  }
}
