// The list of requests: what runs on top, each with the bar of its times and, opened, all we know.

import { drawBar, newBar } from "./bars.js";
import { byId, duration, make, plural, setText } from "./dom.js";
import { isOver, segmentsOf, totalOf } from "./segments.js";

const MAX_NUM_ROWS = 24;
const WORDS = {
  queued: "queued", prefilling: "prefill", handing_over: "hand-over", decoding: "decode",
  finished: "done", cancelled: "cancelled", failed: "failed", gone: "gone",
};
const rows = new Map(); // by the request's name

export function drawRows(requests, nowMs) {
  const shown = requests.slice(0, MAX_NUM_ROWS);
  const names = new Set(shown.map(({ name }) => name));
  for (const [name, row] of rows) {
    if (names.has(name)) continue;
    row.element.remove();
    rows.delete(name);
  }
  const segments = shown.map((request) => segmentsOf(request, ageOf(request, nowMs)));
  const scaleMs = Math.max(1, ...segments.map(totalOf));
  setText(byId("scale"), duration(scaleMs));
  byId("row-head").hidden = shown.length === 0;
  const list = byId("rows");
  shown.forEach((request, index) => {
    let row = rows.get(request.name);
    if (!row) rows.set(request.name, row = new Row(request));
    row.draw(request, segments[index], scaleMs);
    if (list.children[index] !== row.element) list.insertBefore(row.element, list.children[index] ?? null);
  });
}

/** How long a request runs, or ran until its last mark. */
function ageOf(request, nowMs) {
  if (request.times) return request.times.total_ms;
  return isOver(request) ? request.marks.at(-1)[1] : nowMs - request.began_ms;
}

class Row {
  constructor({ name, isOwn }) {
    this.stage = make("span", { className: "stage" });
    this.bar = newBar();
    this.tokens = make("span", { className: "tokens" });
    this.total = make("span", { className: "total" });
    this.details = make("dl", { className: "details", id: `details-${name}`, hidden: true });
    const owner = isOwn ? make("span", { className: "you", textContent: "you" }) : "";
    this.button = make("button",
      { type: "button", className: "row", "aria-expanded": "false", "aria-controls": this.details.id },
      make("span", { className: "who" }, make("code", { textContent: name.slice(0, 6) }), owner),
      this.stage, this.bar, this.tokens, this.total);
    this.button.addEventListener("click", () => this.toggle());
    this.element = make("li", { data: { name } }, this.button, this.details);
  }

  toggle() {
    this.details.hidden = !this.details.hidden;
    this.button.setAttribute("aria-expanded", String(!this.details.hidden));
    this.draw(...this.drawn);
  }

  draw(request, segments, scaleMs) {
    this.drawn = [request, segments, scaleMs];
    this.element.dataset.stage = request.stage;
    this.element.classList.toggle("own", request.isOwn);
    setText(this.stage, WORDS[request.stage]);
    setText(this.tokens, plural(request.num_tokens, "token"));
    setText(this.total, duration(request.times?.total_ms ?? totalOf(segments)));
    drawBar(this.bar, segments, scaleMs);
    if (this.details.hidden) return;
    const pairs = detailsOf(request, segments);
    const text = JSON.stringify(pairs);
    if (this.told === text) return;
    this.told = text;
    this.details.replaceChildren(...pairs.map(([label, value]) =>
      make("div", {}, make("dt", { textContent: label }), make("dd", { textContent: value }))));
  }
}

function detailsOf(request, segments) {
  const { num_cached_tokens, num_accepted_tokens, num_drafted_tokens } = request;
  const pairs = segments.map(([part, ms]) => [part === "other" ? "messages" : part, duration(ms)]);
  pairs.push(
    ["first token", duration(request.times?.ttft_ms)],
    ["prefill worker", request.prefill_worker],
    ["decode worker", request.decode_worker],
    ["prompt tokens", request.num_prompt_tokens],
    ["cached tokens", num_cached_tokens],
    ["drafts accepted", !num_drafted_tokens ? null : `${num_accepted_tokens} of ${num_drafted_tokens}`],
    ["attempt", request.attempt > 1 ? request.attempt : null],
    ["end", request.reason],
  );
  return pairs.filter(([, value]) => value != null && value !== "").map(([label, value]) => [label, String(value)]);
}
