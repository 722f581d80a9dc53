// Small helpers: elements, numbers as people read them, the clipboard.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** Make an element with properties and children; texts are never read as HTML. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  const { data, ...rest } = properties;
  for (const [name, value] of Object.entries(rest)) {
    if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  Object.assign(element.dataset, data ?? {});
  element.append(...children);
  return element;
}

export function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Set a text only where it differs: nothing is laid out anew for nothing. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** 950 -> "950 ms", 12300 -> "12.3 s". */
export function duration(ms) {
  if (ms == null) return "";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return ms < 100_000 ? `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s` : `${Math.round(ms / 1000)} s`;
}

/** 12345 -> "12.3k". */
export function count(number) {
  if (number < 1000) return String(Math.round(number));
  return number < 1e6 ? `${(number / 1000).toFixed(number < 10_000 ? 1 : 0)}k` : `${(number / 1e6).toFixed(1)}M`;
}

export const rate = (perSecond) => (perSecond < 10 ? perSecond.toFixed(1) : count(perSecond));

export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

/** Copy, also where the page is not served over HTTPS and has no clipboard of its own. */
export async function copy(text, button) {
  let isCopied = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", { value: text, className: "hidden" });
    document.body.append(area);
    area.select();
    isCopied = document.execCommand("copy");
    area.remove();
  }
  const before = button.textContent;
  button.textContent = isCopied ? "Copied" : "Not copied";
  setTimeout(() => { button.textContent = before; }, 1200);
}
