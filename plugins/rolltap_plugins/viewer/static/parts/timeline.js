// When each call waited, was answered and generated, and what time the agent's tools took in between.

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { duration, tick, visible } from "../lib/format.js";

// One entry a call: several choices are one.
export function callsOf(nodes) {
  const calls = new Map();
  for (const node of nodes) if (node.times && !calls.has(node.call_id)) calls.set(node.call_id, node);
  return [...calls.values()];
}

function ticks(length) {
  const rough = length / 5;
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough) ?? 1;
  return Array.from({ length: Math.floor(length / step) + 1 }, (_, at) => at * step).filter((at) => at <= length * 0.97);
}

export function timeline(nodes, chosen, choose) {
  const calls = callsOf(nodes);
  const start = Math.min(...calls.map((call) => call.times.received));
  const length = Math.max(0.001, Math.max(...calls.map((call) => call.times.ended)) - start);
  const at = (time) => ((time - start) / length) * 100;
  const part = (from, to, name) => (to > from ? html`<i class=${name} .style=${`left:${at(from)}%;width:${((to - from) / length) * 100}%`}></i>` : nothing);
  const chosenCall = nodes.find((node) => node.id === chosen)?.call_id;
  let before = null;
  const generated = calls.reduce((sum, { times }) => sum + times.ended - times.sent, 0);
  return html`
    <div class="legend">
      <span><i class="wait"></i>waiting</span><span><i class="first"></i>to the first token</span>
      <span><i class="generate"></i>generation</span><span><i class="tools"></i>the agent and its tools</span>
      <span class="grow"></span><span>${duration(length)} in all, ${Math.round((generated / length) * 100)} % in the model</span>
    </div>
    <div class="timeline">
      <div class="axis" aria-hidden="true"><span></span><div class="ticks">
        ${ticks(length).map((seconds) => html`<span .style=${`left:${(seconds / length) * 100}%`}>${seconds ? `+${tick(seconds)}` : "0"}</span>`)}
      </div><span></span></div>
      ${calls.map((call, index) => {
        const { received, sent, first_token: first, ended } = call.times;
        const gap = before !== null && received > before ? [before, received] : null;
        before = Math.max(before ?? 0, ended);
        const between = gap ? gap[1] - gap[0] : 0;
        const words = `waited ${duration(sent - received)}, first token after ${duration((first ?? ended) - sent)}, generated for ${duration(ended - (first ?? ended))}${gap ? `, ${duration(between)} after the call before` : ""}`;
        return html`<button class="lane" aria-current=${call.call_id === chosenCall ? "true" : "false"} title=${words} @click=${() => choose(call.id)}>
          <span class="name">${index + 1}${call.calls[0] ? ` · ${visible(call.calls[0])}` : ""}</span>
          <span class="track" aria-hidden="true">
            ${gap ? part(gap[0], gap[1], "tools") : nothing}
            ${between > length * 0.09 ? html`<span class="gap" .style=${`left:${at((gap[0] + gap[1]) / 2)}%`}>${duration(between)}</span>` : nothing}
            ${part(received, sent, "wait")} ${part(sent, first ?? ended, "first")} ${first ? part(first, ended, "generate") : nothing}
          </span>
          <span class="took">${duration(ended - received)}</span><span class="hidden-text">${words}</span>
        </button>`;
      })}
    </div>`;
}
