// The diagram: a box a kind of service with its counts, and a dot a request that walks through them.

import { byId, count, makeSvg, rate, setText } from "./dom.js";
import { LABELS, TITLES, layoutFor, placeOf, pointAt } from "./layout.js";
import { isOver } from "./segments.js";
import { drawSpark, newSpark } from "./spark.js";

const LEAVE_MS = 900;
const MAX_NUM_DOTS = 40;

let drawn = null; // the layout with its elements
const dots = new Map(); // by the request's name

export function drawDiagram({ services, numOpen, speeds }, requests) {
  const place = byId("diagram");
  const layout = layoutFor(place.clientWidth);
  if (!drawn || drawn.layout.isTall !== layout.isTall) drawn = open(place, layout);
  const roles = groupByRole(services);
  // What the others of several gateways have open is theirs to tell.
  for (const gateway of roles.gateway?.slice(0, 1) ?? []) gateway.num_running = numOpen;
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
  prefill: (sum) => [seats(sum), `${count(sum("prompt_tokens_per_s"))} tokens/s of late`, null],
  decode: (sum) => [seats(sum), `${rate(sum("tokens_per_s"))} tokens/s`, null],
  draft(sum) {
    const [drafted, accepted] = [sum("drafted_per_s"), sum("accepted_per_s")];
    return [`${rate(drafted)} drafts/s`, drafted ? `${Math.round((100 * accepted) / drafted)}% accepted` : "idle", null];
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
  // The oldest first: who came first stands first.
  for (const request of live.reverse()) {
    const dot = dots.get(request.name) ?? enter(request);
    stand(dot, placeOf(request));
    dot.element.setAttribute("class", classesOf(request));
  }
}

const classesOf = ({ stage, isOwn }) => `dot stage-${stage}${isOwn ? " own" : ""}`;

function enter(request) {
  const attributes = { r: request.isOwn ? 6 : 5, class: classesOf(request) };
  const element = makeSvg("circle", attributes, makeSvg("title", {}, request.name));
  const dot = { element, place: null, slot: 0 };
  const { x, y, width, height } = drawn.layout.boxes.gateway;
  move(element, [x + width - 10, y + height / 2]);
  drawn.layer.append(element);
  dots.set(request.name, dot);
  // Laid out where it comes in, it is seen to walk from there.
  element.getBoundingClientRect();
  return dot;
}

/** Let a dot go to a place, to the first spot there that is free, and keep it. */
function stand(dot, place) {
  if (dot.place === place) return;
  const taken = new Set([...dots.values()].filter((other) => other.place === place).map(({ slot }) => slot));
  dot.place = place;
  dot.slot = 0;
  while (taken.has(dot.slot)) dot.slot += 1;
  dot.at = pointAt(drawn.layout, place, dot.slot);
  move(dot.element, dot.at);
}

/** Let a dot go back to the gateway on the way of the tokens. */
function leave(name, { element, at }) {
  dots.delete(name);
  element.classList.add("leaving");
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
    element.remove();
    return;
  }
  const way = [at, ...drawn.layout.back];
  const frames = way.map((point) => ({ transform: translation(point), easing: "ease-in-out" }));
  element.animate(frames, { duration: LEAVE_MS, fill: "forwards" }).finished.then(() => element.remove(), () => {});
}

function move(element, point) {
  element.style.transform = translation(point);
}

const translation = ([x, y]) => `translate(${x}px, ${y}px)`;
