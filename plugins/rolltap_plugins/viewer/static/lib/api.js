// Asks the server for data. Where it wants a key, the person is asked for one, which is kept until the tab is closed.

const KEY = "rolltap-key";
const ROOT = new URL("api/", new URL("./", document.baseURI));

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

let askForKey = async () => false;
let asking = null;

// `ask(again)` is called when a key is needed, `again` where the last one was wrong; it resolves to the key.
export function whenKeyIsNeeded(ask) {
  askForKey = ask;
}

function headers() {
  const key = sessionStorage.getItem(KEY);
  return key === null ? {} : { Authorization: `Bearer ${key}` };
}

async function newKey() {
  asking ??= (async () => {
    const again = sessionStorage.getItem(KEY) !== null;
    sessionStorage.removeItem(KEY);
    sessionStorage.setItem(KEY, await askForKey(again));
  })().finally(() => {
    asking = null;
  });
  return asking;
}

async function request(path, options) {
  for (;;) {
    const used = sessionStorage.getItem(KEY);
    let response;
    try {
      response = await fetch(new URL(path, ROOT), { ...options, headers: headers() });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The server does not answer. Is rolltap still running?", 0);
    }
    if (response.status !== 401) return response;
    if (used === sessionStorage.getItem(KEY)) await newKey();
  }
}

async function failure(response) {
  let message = `The server answered ${response.status}.`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // no JSON: a proxy in between
  }
  return new ApiError(message, response.status);
}

// `await get("sessions", {limit: 20})`: the answer's JSON. Throws an `ApiError` with a message for people.
export async function get(path, query = {}, options = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const search = given.length ? `?${new URLSearchParams(given)}` : "";
  const response = await request(path + search, options);
  if (!response.ok) throw await failure(response);
  return response.json();
}

// Server-sent events by fetch: an EventSource can't send a key.
export async function* events(query, signal) {
  const response = await request(`events?${new URLSearchParams(query)}`, { signal });
  if (!response.ok) throw await failure(response);
  yield { kind: "connected" };
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    buffer += value;
    const frames = buffer.split("\n\n");
    buffer = frames.pop();
    for (const frame of frames) {
      if (frame.startsWith("data: ")) yield JSON.parse(frame.slice(6));
    }
  }
}

export function nodePath(session, node, rest = "") {
  return `sessions/${encodeURIComponent(session)}/nodes/${encodeURIComponent(node)}${rest}`;
}
