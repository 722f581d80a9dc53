// Starts the page: chat on one side, the pipeline on the other.

import { ApiError, ask, setKey } from "./api.js";
import { openChat } from "./chat.js";
import { byId, setText } from "./dom.js";
import { openPipeline } from "./pipeline.js";
import { openSettings } from "./settings.js";

const KEY_WAIT_MS = 60_000;
let keyGiven = [];

/** Show the field for a key; return when one was given, or after a while. */
function askForKey() {
  const form = byId("key-form");
  if (form.hidden) {
    form.hidden = false;
    byId("key").focus();
  }
  return new Promise((resolve) => {
    keyGiven.push(resolve);
    setTimeout(resolve, KEY_WAIT_MS);
  });
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(byId("key").value.trim());
  byId("key-form").hidden = true;
  byId("key").value = "";
  for (const resolve of keyGiven) resolve();
  keyGiven = [];
});

async function showModel() {
  try {
    const { data } = await (await ask("v1/models")).json();
    setText(byId("model"), data.map((model) => model.id).join(", "));
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 401) return;
    await askForKey();
    await showModel();
  }
}

function openTabs() {
  for (const view of ["chat", "pipeline"]) {
    byId(`tab-${view}`).addEventListener("click", () => {
      byId("main").dataset.view = view;
      for (const other of ["chat", "pipeline"]) {
        byId(`tab-${other}`).setAttribute("aria-pressed", String(other === view));
      }
    });
  }
}

openTabs();
openSettings();
openChat(askForKey);
openPipeline(askForKey);
showModel();
