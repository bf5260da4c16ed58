// One stream of events for the whole page; it comes back by itself when it is cut.

import { events } from "./api.js";

const listeners = new Set();
const BACKOFF_MS = [500, 1000, 2000, 5000, 10000];

export const live = { state: "connecting" };

// `listen(event)` is called for each event, also for {kind: "connected"} and {kind: "lost"}. Returns how to stop.
export function onEvent(listen) {
  listeners.add(listen);
  return () => listeners.delete(listen);
}

function tell(event) {
  for (const listen of [...listeners]) listen(event);
}

export async function follow() {
  for (let failures = 0; ; failures += 1) {
    try {
      for await (const event of events({})) {
        if (event.kind === "connected") {
          live.state = "connected";
          failures = 0;
        }
        tell(event);
      }
    } catch {
      // told below
    }
    live.state = "lost";
    tell({ kind: "lost" });
    await new Promise((done) => setTimeout(done, BACKOFF_MS[Math.min(failures, BACKOFF_MS.length - 1)]));
  }
}

// Calls `work` soon after the last of many calls, and at least every `mostMs`.
export function calmly(work, waitMs = 150, mostMs = 600) {
  let timer = null;
  let first = 0;
  const run = () => {
    timer = null;
    work();
  };
  const call = () => {
    const now = performance.now();
    if (timer === null) first = now;
    clearTimeout(timer);
    timer = setTimeout(run, Math.max(0, Math.min(waitMs, first + mostMs - now)));
  };
  call.cancel = () => clearTimeout(timer);
  return call;
}
