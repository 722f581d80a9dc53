// The chat: a conversation that grows by one question and one answer at a time.

import { ApiError, ask, events, newRequestId } from "./api.js";
import { Answer, question } from "./messages.js";
import { byId, copy, make } from "./dom.js";
import { readSettings, writeBody } from "./settings.js";

const STORE = "slipstream.chat";
const EXAMPLES = [
  "What is the capital of France?",
  "Write a short story about a river.",
  "Explain why the sky is blue, in three sentences.",
];

let messages = []; // as the API wants them
let running = null; // what cancels the answer that is being written
let askForKey;

export function openChat(onKeyNeeded) {
  askForKey = onKeyNeeded;
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  byId("cancel").addEventListener("click", () => running?.abort());
  byId("clear").addEventListener("click", clear);
  byId("copy-all").addEventListener("click", () => copy(transcript(), byId("copy-all")));
  for (const text of EXAMPLES) {
    const button = make("button", { type: "button", textContent: text });
    button.addEventListener("click", () => {
      byId("prompt").value = text;
      send();
    });
    byId("examples").append(button);
  }
  restore();
}

function send() {
  const text = byId("prompt").value.trim();
  if (!text || running) return;
  byId("prompt").value = "";
  messages.push({ role: "user", content: text });
  show(question(text));
  answer();
}

async function answer() {
  const shown = new Answer();
  show(shown.element);
  running = new AbortController();
  setBusy(true);
  try {
    await stream(shown, running.signal);
    messages.push({ role: "assistant", content: shown.text });
  } catch (error) {
    fail(shown, error);
  } finally {
    running = null;
    setBusy(false);
    keep();
    scrollDown(true);
  }
}

async function stream(shown, signal) {
  const { system, ...settings } = readSettings();
  const response = await ask("v1/chat/completions", {
    method: "POST",
    signal,
    headers: { "content-type": "application/json", "x-request-id": newRequestId() },
    body: writeBody({
      messages: system ? [{ role: "system", content: system }, ...messages] : messages,
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
      ...settings,
    }),
  });
  shown.began(response.headers);
  for await (const chunk of events(response)) {
    if (chunk.error) throw new ApiError(response.status, chunk.error);
    shown.add(chunk);
    scrollDown();
  }
  shown.end();
}

function fail(shown, error) {
  if (error.name === "AbortError") {
    shown.cancelled();
    // What was said stays in the conversation; where nothing was, the question may be asked again.
    if (shown.text) messages.push({ role: "assistant", content: shown.text });
    else takeBack();
    return;
  }
  shown.failed(error);
  takeBack();
  if (error.status === 401) askForKey();
}

/** Put a question that has no answer back to where it can be changed. */
function takeBack() {
  const { content } = messages.pop();
  if (!byId("prompt").value) byId("prompt").value = content;
}

function setBusy(isBusy) {
  byId("send").hidden = isBusy;
  byId("cancel").hidden = !isBusy;
  byId("log").setAttribute("aria-busy", String(isBusy));
  if (!isBusy) byId("prompt").focus({ preventScroll: true });
}

function clear() {
  running?.abort();
  messages = [];
  byId("log").replaceChildren(byId("welcome"));
  byId("welcome").hidden = false;
  keep();
  byId("prompt").focus();
}

function show(element) {
  byId("welcome").hidden = true;
  byId("log").append(element);
  scrollDown(true);
}

/** Follow the answer, unless somebody has scrolled up to read. */
function scrollDown(isForced = false) {
  const log = byId("log");
  const isNearEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 120;
  if (isForced || isNearEnd) log.scrollTop = log.scrollHeight;
}

const transcript = () => messages.map(({ role, content }) => `${role}: ${content}`).join("\n\n");

function keep() {
  try {
    sessionStorage.setItem(STORE, JSON.stringify(messages));
  } catch {
    // Too long to be kept: it stays on the page.
  }
}

function restore() {
  messages = JSON.parse(sessionStorage.getItem(STORE) ?? "[]");
  for (const { role, content } of messages) {
    if (role === "user") {
      show(question(content));
      continue;
    }
    const shown = new Answer();
    shown.restore(content);
    show(shown.element);
  }
}
