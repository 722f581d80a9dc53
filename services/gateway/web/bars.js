// Bars that show where a request's time went.

import { duration, make } from "./dom.js";
import { PARTS } from "./segments.js";

const LABELS = Object.fromEntries(PARTS);

/** Draw segments into an element, as wide as their share of `scaleMs`. */
export function drawBar(bar, segments, scaleMs) {
  while (bar.children.length > segments.length) bar.lastChild.remove();
  segments.forEach(([part, ms], index) => {
    const piece = bar.children[index] ?? bar.appendChild(make("i"));
    piece.className = `part-${part}`;
    piece.style.width = `${Math.max(0.4, (100 * ms) / scaleMs)}%`;
    piece.title = `${LABELS[part]} ${duration(ms)}`;
  });
  bar.setAttribute("aria-label", segments.map(([part, ms]) => `${LABELS[part]} ${duration(ms)}`).join(", "));
}

export function newBar() {
  return make("span", { className: "bar", role: "img" });
}
