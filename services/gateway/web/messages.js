// A question and an answer as the page shows them: text, figures, names, the bar of its times.

import { drawBar, newBar } from "./bars.js";
import { copy, duration, make, rate, setText } from "./dom.js";
import { segmentsOfTimes, totalOf } from "./segments.js";

const FENCE = /^```/m;

export function question(text) {
  return make("article", { className: "message question", "aria-label": "You" }, make("p", { textContent: text }));
}

/** One answer, from the wait for its first word to its figures. */
export class Answer {
  constructor() {
    this.text = "";
    this.askedMs = performance.now();
    this.firstMs = null;
    this.ending = null;
    this.usage = null;
    this.names = {};
    this.body = make("div", { className: "text" });
    this.figures = make("div", { className: "figures" });
    this.element = make("article", { className: "message answer waiting", "aria-label": "Answer" },
      this.body, this.figures);
  }

  began(headers) {
    this.names.trace = headers.get("x-slipstream-trace-id");
  }

  add(chunk) {
    this.names.request = chunk.id;
    this.usage = chunk.usage ?? this.usage;
    this.journey = chunk.slipstream ?? this.journey;
    for (const { delta, finish_reason, seed } of chunk.choices) {
      if (delta?.content) this.say(delta.content);
      if (finish_reason) this.ending = { finish_reason, seed };
    }
    if (this.firstMs !== null) setText(this.figures, this.progress());
  }

  say(text) {
    this.firstMs ??= performance.now();
    this.element.classList.replace("waiting", "streaming");
    this.text += text;
    render(this.body, this.text);
  }

  progress() {
    const seconds = (performance.now() - this.firstMs) / 1000;
    const numTokens = this.usage?.completion_tokens ?? 0;
    const speed = seconds > 0.2 && numTokens > 1 ? ` · ${rate((numTokens - 1) / seconds)} tokens/s` : "";
    return `first token ${duration(this.firstMs - this.askedMs)} · ${numTokens} tokens${speed}`;
  }

  end() {
    this.element.classList.remove("waiting", "streaming");
    if (!this.text) this.body.append(make("p", { className: "note", textContent: "The answer has no words." }));
    this.showFigures();
  }

  cancelled() {
    this.element.classList.remove("waiting", "streaming");
    this.element.classList.add("cancelled");
    const progress = this.firstMs === null ? "before the first token" : this.progress();
    this.figures.replaceChildren(make("strong", { textContent: "stopped" }), ` ${progress}`, this.copyButton());
  }

  failed(error) {
    this.element.classList.remove("waiting", "streaming");
    this.element.classList.add("error");
    const code = error.code ? make("code", { textContent: error.code }) : "";
    this.body.append(make("p", { className: "trouble", role: "alert" }, code, error.message));
    this.figures.replaceChildren();
  }

  restore(text) {
    this.text = text;
    this.element.classList.remove("waiting");
    render(this.body, text);
    this.figures.append(this.copyButton());
  }

  showFigures() {
    const { journey, usage, ending } = this;
    const numTokens = usage?.completion_tokens ?? 0;
    const tokensPerS = journey?.tpot_ms ? 1000 / journey.tpot_ms : null;
    const numCached = usage?.prompt_tokens_details?.cached_tokens ?? 0;
    const numAccepted = usage?.completion_tokens_details?.accepted_prediction_tokens ?? 0;
    this.figures.replaceChildren(
      chip("first token", duration(this.firstMs === null ? null : this.firstMs - this.askedMs), "time to first token, as this page saw it"),
      chip("speed", tokensPerS === null ? "" : `${rate(tokensPerS)} tokens/s`, "output tokens a second after the first"),
      chip("tokens", `${usage?.prompt_tokens ?? 0} + ${numTokens}`, "of the prompt and of the answer"),
      chip("cached", numCached ? String(numCached) : "", "prompt tokens found in the prefix cache"),
      chip("drafts", numAccepted ? `${numAccepted} accepted` : "", "draft tokens the model agreed with"),
      chip("end", ending?.finish_reason === "length" ? "length" : "", "cut at the limit of tokens"),
      chip("seed", ending?.seed == null ? "" : String(ending.seed), "with it the same answer can be had again"),
      this.name("request", this.names.request?.replace(/^chatcmpl-/, "")),
      this.name("trace", this.names.trace ?? journey?.trace_id),
      this.copyButton(),
    );
    if (!journey) return;
    const bar = newBar();
    const segments = segmentsOfTimes(journey);
    drawBar(bar, segments, totalOf(segments));
    this.figures.before(bar);
  }

  name(label, value) {
    if (!value) return "";
    const button = make("button", { type: "button", className: "chip", title: `copy ${value}` },
      make("b", { textContent: label }), short(value));
    button.addEventListener("click", () => copy(value, button.lastChild));
    return button;
  }

  copyButton() {
    const button = make("button", { type: "button", className: "quiet copy", textContent: "Copy" });
    button.addEventListener("click", () => copy(this.text, button));
    return button;
  }
}

function chip(label, value, title) {
  if (!value) return "";
  return make("span", { className: "chip", title }, make("b", { textContent: label }), value);
}

const short = (name) => (name.length > 12 ? `${name.slice(0, 8)}…` : name);

/** Show a text, what stands between fences as code; only what has changed is made anew. */
function render(body, text) {
  // Every second part lies between two fences; the first line of it names the language.
  const blocks = text.split(FENCE).map((part, index) =>
    (index % 2 ? ["pre", part.replace(/^[^\n]*\n?/, "")] : ["p", part]));
  const kept = blocks.filter(([, content]) => content.trim() !== "");
  while (body.children.length > kept.length) body.lastChild.remove();
  kept.forEach(([tag, content], index) => {
    let element = body.children[index];
    if (element?.tagName.toLowerCase() !== tag) {
      const made = make(tag);
      if (element) element.replaceWith(made);
      else body.append(made);
      element = made;
    }
    setText(element, tag === "p" ? content.trim() : content);
  });
}
