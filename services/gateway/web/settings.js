// What a request asks for beside its messages; what is left empty is the model's own choice.

import { byId, setText } from "./dom.js";

const STORE = "slipstream.settings";
const NUMBERS = { temperature: "temperature", "top-p": "top_p", "max-tokens": "max_tokens", seed: "seed" };
const FIELDS = ["system", "stop", ...Object.keys(NUMBERS)];

/** Keep settings over a reload of the tab, and say in one line what is set. */
export function openSettings() {
  const kept = JSON.parse(sessionStorage.getItem(STORE) ?? "{}");
  for (const id of FIELDS) {
    byId(id).value = kept[id] ?? "";
    byId(id).addEventListener("input", keep);
  }
  summarize();
}

function keep() {
  const values = Object.fromEntries(FIELDS.map((id) => [id, byId(id).value]));
  sessionStorage.setItem(STORE, JSON.stringify(values));
  summarize();
}

function summarize() {
  const { system, stop, ...fields } = readSettings();
  const parts = Object.entries(fields).map(([name, value]) => `${name.replace("_", " ")} ${value}`);
  if (system) parts.unshift("system prompt");
  if (stop) parts.push(`stop ×${stop.length}`);
  setText(byId("settings-summary"), parts.join(" · "));
}

/** Write a body whose seed keeps all its digits, of which numbers of JavaScript have fewer. */
export function writeBody({ seed, ...fields }) {
  const text = JSON.stringify(fields);
  return /^-?\d+$/.test(seed ?? "") ? `${text.slice(0, -1)},"seed":${seed}}` : text;
}

/** Return the fields of the request's body, and the system prompt; the seed as it was typed. */
export function readSettings() {
  const found = {};
  for (const [id, name] of Object.entries(NUMBERS)) {
    const text = byId(id).value.trim();
    // Out of range is for the server to say: it knows the limits, and names them.
    if (text !== "") found[name] = name === "seed" ? text : Number(text);
  }
  const stop = byId("stop").value.split("\n").filter((line) => line !== "");
  if (stop.length) found.stop = stop;
  const system = byId("system").value.trim();
  if (system) found.system = system;
  return found;
}
