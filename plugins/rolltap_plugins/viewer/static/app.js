// The frame around every page: the bar, the way to a page by its address, the key, the theme, the keys of the keyboard.

import { html, nothing, render } from "./vendor/lit-html/lit-html.js";
import { get, whenKeyIsNeeded } from "./lib/api.js";
import { calmly, follow, live, onEvent } from "./lib/live.js";
import { icon, note, typing } from "./lib/ui.js";
import { ComparePage } from "./pages/compare.js";
import { LivePage } from "./pages/live.js";
import { NodePage } from "./pages/node.js";
import { SessionPage } from "./pages/session.js";
import { SessionsPage } from "./pages/sessions.js";

const ROUTES = [
  [/^#?\/?$/, SessionsPage, "sessions"],
  [/^#\/live$/, LivePage, "live"],
  [/^#\/compare\/([^/]+)\/([^/]+)\/([^/]+)\/([^/]+)$/, ComparePage, "compare"],
  [/^#\/s\/([^/]+)$/, SessionPage, "sessions"],
  [/^#\/s\/([^/]+)\/([^/]+)$/, NodePage, "sessions"],
];

const SHORTCUTS = [
  [["/"], "Search"],
  [["g s", "g l"], "Go to the sessions, to what is live"],
  [["j", "k"], "Next, previous row; arrow keys too"],
  [["Enter"], "Open"],
  [["u"], "Up: from a node to its session, from there to the list"],
  [["c"], "Mark a node, then compare another with it"],
  [["1", "2", "3", "4"], "Choose a tab"],
  [["←", "→"], "Previous, next token"],
  [["[", "]"], "Previous, next message of a sequence"],
  [["p", "n"], "Previous, next unlikely token"],
  [["m"], "Colour tokens by mask or by logprob"],
  [["t"], "Dark or light"],
  [["?"], "This help"],
];

const app = document.querySelector("#app");
let page = null;
let section = "sessions";
let backends = [];
let afterG = false;

function frame() {
  const well = backends.filter((backend) => backend.healthy).length;
  render(
    html`
      <a class="skip" href="#main" @click=${skip}>Skip to the content</a>
      <header class="bar">
        <a class="brand" href="#/" aria-label="rolltap, all sessions"><img src="icon.svg" alt="" width="22" height="22" />rolltap</a>
        <nav aria-label="Pages">
          <a href="#/" aria-current=${section === "sessions" ? "page" : nothing}>Sessions</a>
          <a href="#/live" aria-current=${section === "live" ? "page" : nothing}>Live</a>
        </nav>
        <span class="grow"></span>
        <a class="health" href="#/live">
          <span class="dot ${live.state !== "connected" ? "lost" : well === backends.length ? "good" : "bad"}" aria-hidden="true"></span>
          <span>${live.state === "connected" ? `${well} of ${backends.length} backends healthy` : live.state === "lost" ? "Connection lost, trying again" : "Connecting"}</span>
        </a>
        <button class="quiet" title="Dark or light (t)" aria-label="Switch between dark and light" @click=${switchTheme}>${icon("theme")}</button>
        <button class="quiet" title="Keyboard (?)" aria-label="Keyboard shortcuts" @click=${showHelp}>${icon("keys")}</button>
      </header>
      <main id="main" tabindex="-1"></main>
      <div id="note" role="status"></div>
      <dialog id="help" aria-labelledby="help-title">
        <h2 id="help-title">Keyboard</h2>
        <dl class="shortcuts">${SHORTCUTS.map(([keys, what]) => html`<div><dt>${keys.map((key) => html`<kbd>${key}</kbd> `)}</dt><dd>${what}</dd></div>`)}</dl>
        <form method="dialog"><button class="button">Close</button></form>
      </dialog>
      <dialog id="text-dialog" aria-labelledby="text-title">
        <h2 id="text-title"></h2>
        <textarea readonly rows="14" aria-labelledby="text-title"></textarea>
        <form method="dialog"><button class="button">Close</button></form>
      </dialog>
      <dialog id="key-dialog" aria-labelledby="key-title">
        <form>
          <h2 id="key-title">This server needs a key</h2>
          <p>It is one of the <code>api_keys</code> in its config. It is kept in this tab alone, until you close it.</p>
          <p class="wrong" role="alert" hidden>The server does not know that key.</p>
          <label for="key">API key</label>
          <input id="key" type="password" autocomplete="off" required />
          <button class="button primary">Open the viewer</button>
        </form>
      </dialog>
    `,
    app,
  );
}

function skip(event) {
  event.preventDefault();
  document.querySelector("#main").focus();
}

function route() {
  const match = ROUTES.map(([pattern, Page, name]) => [location.hash.match(pattern), Page, name]).find(([found]) => found);
  if (!match) {
    location.hash = "#/";
    return;
  }
  const [found, Page, name] = match;
  const parameters = found.slice(1).map(decodeURIComponent);
  page?.leave();
  section = name;
  frame();
  // Each page has an element of its own: what one that was left still waits for ends up where nobody looks.
  const root = document.createElement("div");
  root.className = `page ${Page.name}`;
  document.querySelector("#main").replaceChildren(root);
  page = new Page(root, parameters);
  document.title = `${page.title} – rolltap`;
}

function switchTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  setTheme(now === "dark" ? "light" : "dark");
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("rolltap-theme", theme);
  dispatchEvent(new Event("themechange"));
}

function showHelp() {
  document.querySelector("#help").showModal();
}

function askForKey(again) {
  const dialog = document.querySelector("#key-dialog");
  const input = dialog.querySelector("input");
  dialog.querySelector(".wrong").hidden = !again;
  dialog.oncancel = (event) => event.preventDefault();
  if (!dialog.open) dialog.showModal();
  return new Promise((done) => {
    dialog.querySelector("form").onsubmit = (event) => {
      event.preventDefault();
      const key = input.value.trim();
      if (!key) return;
      input.value = "";
      dialog.close();
      done(key);
    };
  });
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (typing(event)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const wasG = afterG;
  afterG = event.key === "g";
  if (wasG && event.key === "s") location.hash = "#/";
  else if (wasG && event.key === "l") location.hash = "#/live";
  else if (event.key === "t") switchTheme();
  else if (event.key === "?") showHelp();
  else if (event.key === "/") {
    const search = document.querySelector("input[type=search]");
    if (search) search.focus();
    else location.hash = "#/";
  } else if (!page?.pressed?.(event)) return;
  event.preventDefault();
}

async function readBackends() {
  try {
    backends = (await get("overview")).models.flatMap((model) => model.backends);
    frame();
  } catch (error) {
    note(error.message);
  }
}

const theme = localStorage.getItem("rolltap-theme");
if (theme) document.documentElement.dataset.theme = theme;
whenKeyIsNeeded(askForKey);
addEventListener("hashchange", route);
addEventListener("keydown", pressed);
route();
readBackends();
setInterval(readBackends, 10000);
onEvent(calmly(frame, 50, 200));
follow();
