// Elements in one expression: html("p", {class: "note"}, "text", child), and the same for SVG.

function make(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on"))
      element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false)
      element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

export const html = (tag, attributes = {}, ...children) => make(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) =>
    make(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const ruler = document.createElement("canvas").getContext("2d");

// Pixels that `text` takes in the font of the charts' labels.
export function textWidth(text, size = 11) {
  ruler.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  return ruler.measureText(text).width;
}

export const linear = (from, to, low, high) => (value) => low + ((value - from) / (to - from)) * (high - low);
