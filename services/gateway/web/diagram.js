// The diagram: a box a kind of service with its counts, and a dot a request that walks through them.

import { byId, count, makeSvg, rate, setText } from "./dom.js";
import { LABELS, TITLES, layoutFor, placeOf, pointAt } from "./layout.js";
import { isOver } from "./segments.js";
import { drawSpark, newSpark } from "./spark.js";

const FADE_MS = 1200;
const MAX_NUM_DOTS = 40;

let drawn = null; // the layout with its elements
const dots = new Map(); // by the request's name

export function drawDiagram(services, requests, speeds) {
  const place = byId("diagram");
  const layout = layoutFor(place.clientWidth);
  if (!drawn || drawn.layout.isTall !== layout.isTall) drawn = open(place, layout);
  const roles = groupByRole(services);
  for (const [role, box] of Object.entries(drawn.boxes)) drawBox(box, role, roles[role] ?? []);
  drawEdges(roles, requests);
  drawDots(requests);
  drawSpark(drawn.spark, layout.spark, speeds);
}

function groupByRole(services) {
  const roles = {};
  for (const service of services) (roles[service.role] ??= []).push(service);
  return roles;
}

function open(place, layout) {
  const [width, height] = layout.size;
  const svg = makeSvg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Services of the pipeline and the requests in them" });
  const edges = {};
  for (const [name, path] of Object.entries(layout.edges)) {
    edges[name] = svg.appendChild(makeSvg("path", { d: path, class: `edge edge-${name}` }));
  }
  for (const [name, [x, y, anchor = "middle"]] of Object.entries(layout.labels)) {
    svg.append(makeSvg("text", { x, y: y + 4, class: "edge-label", "text-anchor": anchor }, LABELS[name]));
  }
  const boxes = {};
  for (const [role, box] of Object.entries(layout.boxes)) boxes[role] = svg.appendChild(newBox(role, box));
  const spark = svg.appendChild(newSpark(layout.spark));
  const layer = svg.appendChild(makeSvg("g"));
  dots.clear();
  place.replaceChildren(svg);
  return { layout, boxes, edges, spark, layer };
}

function newBox(role, { x, y, width, height }) {
  const group = makeSvg("g", { class: `box box-${role}`, transform: `translate(${x} ${y})` });
  group.append(
    makeSvg("rect", { width, height, rx: 10 }),
    makeSvg("text", { x: 12, y: 22, class: "box-title" }, TITLES[role]),
    makeSvg("text", { x: width - 12, y: 22, class: "box-note", "text-anchor": "end" }),
    makeSvg("text", { x: 12, y: 44, class: "box-main" }),
    makeSvg("text", { x: 12, y: 60, class: "box-side" }),
    makeSvg("rect", { x: 12, y: 76, width: width - 24, height: 6, rx: 3, class: "meter" }),
    makeSvg("rect", { x: 12, y: 76, width: 0, height: 6, rx: 3, class: "meter-fill" }),
  );
  return group;
}

function drawBox(box, role, services) {
  const [, , note, main, side, meter, fill] = box.children;
  const isThere = services.length > 0;
  box.classList.toggle("away", !isThere);
  const isDraining = services.some((service) => service.is_draining);
  setText(note, isDraining ? "draining" : services.length > 1 ? `×${services.length}` : "");
  const sum = (name) => services.reduce((total, service) => total + (service[name] ?? 0), 0);
  const [first, second, share] = isThere ? FIGURES[role](sum, services) : ["not there", "", null];
  setText(main, first);
  setText(side, second);
  meter.classList.toggle("hidden", share === null);
  fill.setAttribute("width", share === null ? 0 : Math.round((Number(meter.getAttribute("width"))) * share));
}

const seats = (sum) => `${count(sum("num_running"))} of ${count(sum("num_seats"))} seats`;

// Of each role: the first line, the second, and how full it is.
const FIGURES = {
  gateway: (sum) => [`${count(sum("num_running"))} open`, "HTTP, streams", null],
  scheduler: (sum) => [`${count(sum("num_waiting"))} waiting`, "admits, places", null],
  prefill: (sum) => [seats(sum), `${count(sum("prompt_tokens_per_s"))} tokens/s`, null],
  decode: (sum) => [seats(sum), `${rate(sum("tokens_per_s"))} tokens/s`, null],
  draft(sum, services) {
    const [drafted, accepted] = [sum("drafted_per_s"), sum("accepted_per_s")];
    return [`${rate(drafted)} drafts/s`, drafted ? `${rate(accepted)} accepted/s` : services.length ? "idle" : "", null];
  },
  kv(sum, services) {
    const [free, all] = [sum("num_free_blocks"), sum("num_blocks")];
    const hits = services.find((service) => service.cache_hits != null)?.cache_hits;
    const cached = hits == null ? "no lookups yet" : `${Math.round(hits * 100)}% cache hits`;
    return [`${count(free)} of ${count(all)} free`, cached, all ? 1 - free / all : 0];
  },
};

function drawEdges(roles, requests) {
  const live = requests.filter((request) => !isOver(request));
  const isAt = (...stages) => live.some(({ stage }) => stages.includes(stage));
  const isDrafting = (roles.decode ?? []).concat(roles.draft ?? []).some(({ drafted_per_s }) => drafted_per_s > 0);
  const isLocal = live.some(({ stage, prefill_worker }) => stage === "prefilling" && !prefill_worker);
  const busy = {
    ask: isAt("queued"),
    place: live.some(({ stage, prefill_worker }) => stage === "prefilling" && prefill_worker),
    local: isLocal,
    hand: isAt("handing_over"),
    tokens: isAt("decoding"),
    write: isAt("prefilling"),
    read: isAt("decoding"),
    propose: isDrafting && isAt("decoding"),
  };
  for (const [name, edge] of Object.entries(drawn.edges)) edge.classList.toggle("busy", Boolean(busy[name]));
}

function drawDots(requests) {
  const live = requests.filter((request) => !isOver(request)).slice(0, MAX_NUM_DOTS);
  const names = new Set(live.map(({ name }) => name));
  for (const [name, dot] of dots) if (!names.has(name)) leave(name, dot);
  const numAt = {};
  // The oldest first, so that who is there keeps its place when another comes.
  for (const request of live.reverse()) {
    const place = placeOf(request);
    const index = numAt[place] = (numAt[place] ?? -1) + 1;
    const dot = dots.get(request.name) ?? enter(request);
    move(dot, pointAt(drawn.layout, place, index));
    dot.setAttribute("class", `dot stage-${request.stage}${request.isOwn ? " own" : ""}`);
  }
}

function enter(request) {
  const dot = makeSvg("circle", { r: request.isOwn ? 6 : 5 }, makeSvg("title", {}, request.name));
  const { x, y, height } = drawn.layout.boxes.gateway;
  move(dot, [x + 20, y + height - 30]);
  drawn.layer.append(dot);
  dots.set(request.name, dot);
  // Laid out where it comes in, it is seen to walk from there.
  dot.getBoundingClientRect();
  return dot;
}

/** Send a dot back to the gateway with its answer, and let it fade. */
function leave(name, dot) {
  dots.delete(name);
  const { x, y, width, height } = drawn.layout.boxes.gateway;
  move(dot, [x + width - 20, y + height - 30]);
  dot.classList.add("leaving");
  setTimeout(() => dot.remove(), FADE_MS);
}

function move(dot, [x, y]) {
  dot.style.transform = `translate(${x}px, ${y}px)`;
}
