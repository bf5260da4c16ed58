// Small things that every page uses.

import { html, nothing, svg } from "../vendor/lit-html/lit-html.js";

const PATHS = {
  search: "M10.5 10.5 14 14M7 12A5 5 0 1 1 7 2a5 5 0 0 1 0 10Z",
  theme: "M8 2a6 6 0 1 0 0 12V2Zm0 0a6 6 0 0 1 0 12",
  keys: "M2.5 4.5h11v7h-11zM5 7h.01M8 7h.01M11 7h.01M5.5 9.3h5",
  branch: "M5 3v10M5 8c0 3 6 1 6 5M5 3h.01M11 13h.01",
  next: "M6 3.5 10.5 8 6 12.5",
  down: "M3.5 6 8 10.5 12.5 6",
};

export const icon = (name) => html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true">${svg`<path d=${PATHS[name]} />`}</svg>`;

export const loading = (what) => html`<div class="state" role="status"><span class="spinner" aria-hidden="true"></span>Loading ${what}…</div>`;

export const empty = (title, advice) => html`<div class="state"><strong>${title}</strong><span>${advice ?? nothing}</span></div>`;

export const failed = (error, retry) => html`
  <div class="state failed" role="alert">
    <strong>${error.status === 404 ? "Not found" : "That did not work"}</strong>
    <span>${error.message}</span>
    ${retry ? html`<button class="button" @click=${retry}>Try again</button>` : nothing}
  </div>`;

// Tabs as the ARIA pattern has them: arrows move, and the panel is the next element.
export function tabs(names, chosen, choose, label) {
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const keys = Object.keys(names);
    const next = keys[(keys.indexOf(chosen) + step + keys.length) % keys.length];
    const list = event.currentTarget;
    choose(next);
    requestAnimationFrame(() => list.querySelector('[aria-selected="true"]')?.focus());
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} @keydown=${move}>
    ${Object.entries(names).map(
      ([key, title]) => html`<button role="tab" id=${`tab-${key}`} aria-controls="panel" aria-selected=${key === chosen ? "true" : "false"}
        tabindex=${key === chosen ? 0 : -1} @click=${() => choose(key)}>${title}</button>`,
    )}
  </div>`;
}

export function choice(name, options, chosen, choose) {
  return html`<div class="choice" role="group" aria-label=${name}>
    ${Object.entries(options).map(
      ([key, title]) => html`<button aria-pressed=${key === chosen ? "true" : "false"} @click=${() => choose(key)}>${title}</button>`,
    )}
  </div>`;
}

export const fact = (name, value, hint) => html`<div title=${hint ?? nothing}><dt>${name}</dt><dd>${value}</dd></div>`;

let noteTimer = null;

// Says something for a moment, aloud for screen readers too.
export function note(text) {
  const box = document.querySelector("#note");
  box.textContent = text;
  box.classList.add("shown");
  clearTimeout(noteTimer);
  noteTimer = setTimeout(() => box.classList.remove("shown"), 2500);
}

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    note(`Copied ${what}`);
  } catch {
    showText(text, what); // a page that is not served over https may not write to the clipboard
  }
}

function showText(text, what) {
  const dialog = document.querySelector("#text-dialog");
  dialog.querySelector("h2").textContent = `Copy ${what}`;
  const area = dialog.querySelector("textarea");
  area.value = text;
  dialog.showModal();
  area.select();
}

export const typing = (event) => event.target.matches?.("input, textarea, select, [contenteditable]");
