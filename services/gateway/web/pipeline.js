// The live view: follows the gateway's events, keeps what they tell, draws it.

import { ApiError, ask, events, isOwn } from "./api.js";
import { drawDiagram } from "./diagram.js";
import { byId, make, plural, rate, setText } from "./dom.js";
import { drawRows } from "./rows.js";
import { PARTS, isOver } from "./segments.js";
import { Speeds } from "./spark.js";

const RETRY_MS = 2000;
const MAX_NUM_REQUESTS = 48; // as many as the gateway keeps
const DRAW_MS = 100;

const state = { services: [], requests: new Map(), clockMs: 0, numOpen: 0, speeds: new Speeds() };
let hasNews = false;

export function openPipeline(askForKey) {
  for (const [part, label] of PARTS) {
    byId("legend").append(make("li", {}, make("i", { className: `part-${part}` }), label));
  }
  follow(askForKey);
  setInterval(draw, DRAW_MS);
}

async function follow(askForKey) {
  while (true) {
    try {
      const response = await ask("console/events");
      setLink("live");
      for await (const update of events(response)) {
        if (update.error) throw new ApiError(response.status, update.error);
        take(update);
      }
      setLink("reconnecting");
    } catch (error) {
      setLink(error.status ? "off" : "reconnecting", `: ${error.message}`);
      if (error.status === 401) await askForKey();
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

function setLink(status, reason = "") {
  const link = byId("link");
  link.dataset.status = status;
  setText(link, status + reason);
}

function take(update) {
  // Of the gateway's clock only differences matter.
  state.clockMs = update.now_ms - performance.now();
  state.services = update.services;
  state.numOpen = update.num_open;
  state.speeds.note(tokensPerS());
  if (update.is_first) state.requests.clear();
  for (const request of update.requests) {
    state.requests.set(request.name, { num_tokens: 0, ...request, isOwn: isOwn(request.client_id) });
  }
  forget();
  hasNews = true;
}

/** Drop the requests that have ended first. */
function forget() {
  const ended = [...state.requests.values()].filter(isOver);
  ended.sort((one, other) => one.began_ms - other.began_ms);
  while (state.requests.size > MAX_NUM_REQUESTS && ended.length) state.requests.delete(ended.shift().name);
}

function draw() {
  if (document.hidden) return;
  const requests = [...state.requests.values()].sort((one, other) => other.began_ms - one.began_ms);
  const nowMs = performance.now() + state.clockMs;
  // Bars of what runs grow between two updates.
  if (!hasNews && requests.every(isOver)) return;
  hasNews = false;
  drawDiagram(state, requests);
  drawRows(requests, nowMs);
  byId("empty").hidden = requests.length > 0;
  setText(byId("totals"), totals(requests));
}

function totals(requests) {
  const numRunning = requests.filter((request) => !isOver(request)).length;
  return `${plural(numRunning, "request")} · ${rate(tokensPerS())} tokens/s`;
}

const tokensPerS = () => state.services.reduce((sum, service) => sum + (service.tokens_per_s ?? 0), 0);
