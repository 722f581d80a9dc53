// The gateway's HTTP API: the key, errors as they are given, server-sent events.

const KEY = "slipstream.key";
const MAX_EVENT_CHARACTERS = 4 * 1024 * 1024;
// Within a string the first quote would have a backslash before it.
const LONG_SEED = /"seed":(-?\d{16,})/g;

/** Random, and no right hangs on it: by it the page finds its own requests in the live view. */
const page = Array.from(crypto.getRandomValues(new Uint8Array(6)), (byte) =>
  byte.toString(16).padStart(2, "0")).join("");
let numRequests = 0;

export const newRequestId = () => `console-${page}-${++numRequests}`;

export const isOwn = (clientId) => clientId?.startsWith(`console-${page}-`) ?? false;

export const setKey = (key) => sessionStorage.setItem(KEY, key);

/** An answer that is an error, in the words of the server. */
export class ApiError extends Error {
  constructor(status, detail = {}) {
    super(detail.message ?? `the server answered with status ${status}`);
    this.status = status;
    this.code = detail.code ?? null;
    this.param = detail.param ?? null;
  }
}

/** Ask; paths are relative to the page, so that a proxy may put all of it anywhere. */
export async function ask(path, { headers = {}, ...options } = {}) {
  const key = sessionStorage.getItem(KEY);
  const authorization = key ? { authorization: `Bearer ${key}` } : {};
  const url = new URL(path, document.baseURI);
  const response = await fetch(url, { ...options, headers: { ...authorization, ...headers } });
  if (response.ok) return response;
  let body = {};
  try {
    body = await response.json();
  } catch {
    // Not ours: of a proxy in between.
  }
  throw new ApiError(response.status, body.error);
}

/** Read JSON whose seeds may have more digits than a number of JavaScript: those become texts. */
const parse = (data) => JSON.parse(data.replace(LONG_SEED, '"seed":"$1"'));

/** Yield the data of server-sent events, each as JSON, until `[DONE]`. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      if (rest.length > MAX_EVENT_CHARACTERS) throw new Error("an event of the server has no end");
      for (const block of blocks) {
        const data = block.split("\n").filter((line) => line.startsWith("data:"))
          .map((line) => line.slice(5).trimStart()).join("\n");
        if (data === "[DONE]") return;
        if (data) yield parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
