// The list of sessions: thousands of rows, of which only those in sight exist.

import { html, nothing, render } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import { get } from "../lib/api.js";
import { ago, compact, count, moment, plural, reward, shortId, visible } from "../lib/format.js";
import { calmly, onEvent } from "../lib/live.js";
import { choice, empty, failed, icon, loading } from "../lib/ui.js";
import { rewardPlot } from "../parts/plots.js";

const ROW = 38;
const PAGE = 200;
const COLUMNS = [
  ["id", "Session", ""],
  ["group", "Group", ""],
  ["state", "State", "medium"],
  ["turns", "Turns", "number"],
  ["nodes", "Nodes", "number wide"],
  ["tokens", "Tokens", "number"],
  ["reward", "Reward", "medium"],
  [null, "Marks", "wide"],
  ["active", "Active", "number medium"],
];
const STATES = { "": "All", open: "Open", sealed: "Sealed" };
const MARKS = { "": "Any marks", untrainable: "With untrainable nodes", drifted: "With drift", incomplete: "With lost calls", in_flight: "With calls in flight" };
const remembered = { q: "", group: null, state: "", mark: "", sort: "active", desc: true, top: 0, plot: false };

export class SessionsPage {
  title = "Sessions";

  constructor(root) {
    this.root = root;
    this.wanted = remembered;
    this.pages = new Map(); // rows by the number of their page of 200; null while they are read
    this.old = null; // the pages before a reading anew: shown until the new ones are there
    this.version = 0;
    this.matched = null;
    this.fresh = new Map();
    this.error = null;
    this.totals = null;
    const again = calmly(() => this.reload());
    this.stop = onEvent((event) => {
      if (event.kind === "lost") return;
      if (event.session) this.fresh.set(event.session, performance.now());
      again();
    });
    this.timer = setInterval(() => this.render(), 10000);
    this.render();
    this.reload().then(() => {
      const rows = this.root.querySelector(".rows");
      if (rows) rows.scrollTop = remembered.top;
    });
    this.resized = new ResizeObserver(() => this.render());
    this.resized.observe(root);
  }

  leave() {
    this.stop();
    clearInterval(this.timer);
    this.resized.disconnect();
  }

  // Reads what is in sight anew; what is out of sight is read when it comes into sight.
  async reload() {
    this.version += 1;
    this.pages = new Map();
    try {
      const [totals] = await Promise.all([get("overview"), ...this.pagesInSight().map((at) => this.read(at))]);
      this.totals = totals;
      this.error = null;
    } catch (error) {
      this.error = error;
    }
    this.render();
    if (this.wanted.plot) this.drawRewards();
  }

  async read(at) {
    const version = this.version;
    if (this.pages.has(at)) return;
    this.pages.set(at, this.old?.get(at) ?? null);
    const { q, group, state, mark, sort, desc } = this.wanted;
    const query = { q, state, mark, sort, desc, offset: at * PAGE, limit: PAGE };
    if (group !== null) query.group = group;
    const search = new URLSearchParams(Object.entries(query).filter(([name, value]) => name === "group" || value !== ""));
    const page = await get(`sessions?${search}`);
    if (version !== this.version) return;
    this.pages.set(at, page.rows);
    this.old = this.pages;
    this.matched = page.matched;
    this.render();
  }

  failed(error) {
    this.error = error;
    this.render();
  }

  pagesInSight() {
    const rows = this.root.querySelector(".rows");
    const top = rows?.scrollTop ?? 0;
    const height = rows?.clientHeight ?? 800;
    const first = Math.max(0, Math.floor((top - 400) / ROW / PAGE));
    const last = Math.floor((top + height + 400) / ROW / PAGE);
    const most = this.matched === null ? 0 : Math.max(0, Math.ceil(this.matched / PAGE) - 1);
    return Array.from({ length: Math.min(last, most) - Math.min(first, most) + 1 }, (_, at) => Math.min(first, most) + at);
  }

  want(change) {
    Object.assign(this.wanted, change);
    const rows = this.root.querySelector(".rows");
    if (rows) rows.scrollTop = 0;
    this.reload();
  }

  sortBy(name) {
    const same = this.wanted.sort === name;
    this.want({ sort: name, desc: same ? !this.wanted.desc : !["id", "group", "state"].includes(name) });
  }

  scrolled(event) {
    remembered.top = event.currentTarget.scrollTop;
    this.render();
  }

  pressed(event) {
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: 15, PageUp: -15 }[event.key];
    if (step === undefined) return false;
    this.moveFocus(step);
    return true;
  }

  moveFocus(step) {
    const rows = this.root.querySelector(".rows");
    if (!rows || !this.matched) return;
    const focused = document.activeElement?.closest?.(".rows .row");
    const from = focused ? Number(focused.dataset.at) : Math.ceil(rows.scrollTop / ROW) - (step > 0 ? 1 : 0);
    const to = Math.max(0, Math.min(this.matched - 1, from + step));
    if (to * ROW < rows.scrollTop) rows.scrollTop = to * ROW;
    if ((to + 1) * ROW > rows.scrollTop + rows.clientHeight) rows.scrollTop = (to + 1) * ROW - rows.clientHeight;
    this.render();
    rows.querySelector(`[data-at="${to}"] a`)?.focus({ preventScroll: true });
  }

  async drawRewards() {
    const box = this.root.querySelector("#reward-plot");
    if (!box) return;
    try {
      rewardPlot(box, (await get("rewards")).points, this.wanted.group);
    } catch (error) {
      this.failed(error);
    }
  }

  togglePlot() {
    this.wanted.plot = !this.wanted.plot;
    this.render();
    if (this.wanted.plot) this.drawRewards();
  }

  render() {
    render(html`${this.head()} ${this.filters()} ${this.body()}`, this.root);
  }

  head() {
    const totals = this.totals;
    return html`<div class="pagehead head">
      <div class="line">
        <h1>Sessions</h1>
        <p class="totals">
          ${totals
            ? html`<b>${count(totals.sessions)}</b> in all, <b>${count(totals.open)}</b> open, <b>${compact(totals.tokens)}</b> generated
              tokens${totals.untrainable ? html`, <b>${count(totals.untrainable)}</b> with untrainable nodes` : nothing}`
            : nothing}
        </p>
        <span class="grow"></span>
        <button class="button" aria-pressed=${this.wanted.plot ? "true" : "false"} @click=${() => this.togglePlot()}>Rewards over time</button>
      </div>
      ${this.wanted.plot ? html`<figure class="rewards"><figcaption class="hidden-text">Reward by group over time</figcaption><div id="reward-plot"></div></figure>` : nothing}
    </div>`;
  }

  filters() {
    const { q, group, state, mark } = this.wanted;
    const groups = this.totals?.groups ?? [];
    return html`<div class="filters" role="search">
      <label class="field">${icon("search")}<span class="hidden-text">Search sessions</span>
        <input type="search" placeholder="Search by id, group, label, model" .value=${q} @input=${(event) => this.want({ q: event.target.value })} />
        <kbd aria-hidden="true">/</kbd>
      </label>
      ${choice("State", STATES, state, (value) => this.want({ state: value }))}
      <select aria-label="Group" @change=${(event) => this.want({ group: event.target.value === "*" ? null : event.target.value.slice(1) })}>
        <option value="*" ?selected=${group === null}>All groups</option>
        ${groups.map(([name, size]) => html`<option value=${`=${name}`} ?selected=${group === name}>${visible(name) || "no group"} (${count(size)})</option>`)}
      </select>
      <select aria-label="Marks" @change=${(event) => this.want({ mark: event.target.value })}>
        ${Object.entries(MARKS).map(([key, title]) => html`<option value=${key} ?selected=${key === mark}>${title}</option>`)}
      </select>
      <span class="hidden-text" role="status">${this.matched === null ? "" : plural(this.matched, "session")}</span>
    </div>`;
  }

  body() {
    if (this.error) return failed(this.error, () => this.reload());
    if (this.matched === null) return loading("the sessions");
    if (!this.matched) {
      return this.totals?.sessions
        ? empty("No session matches", "Search for less, or take a filter away.")
        : empty("No sessions yet", "POST /sessions/create makes one; point an agent at it, and it appears here at once.");
    }
    const { sort, desc } = this.wanted;
    return html`<div class="table" role="table" aria-label="Sessions" aria-rowcount=${this.matched + 1}>
      <div class="columns" role="row" aria-rowindex="1">
        ${COLUMNS.map(([name, title, classes]) => {
          const order = sort === name && name ? (desc ? "descending" : "ascending") : nothing;
          return html`<span role="columnheader" class=${classes} aria-sort=${order}>
            ${name ? html`<button @click=${() => this.sortBy(name)}>${title}${order === nothing ? nothing : html`<span class="arrow" aria-hidden="true">${desc ? "▼" : "▲"}</span>`}</button>` : title}
          </span>`;
        })}
      </div>
      <div class="rows" role="rowgroup" @scroll=${(event) => this.scrolled(event)}>
        <div class="spacer" role="presentation" .style=${`height:${this.matched * ROW}px`}>${this.rows()}</div>
      </div>
    </div>`;
  }

  rows() {
    const rows = this.root.querySelector(".rows");
    const top = rows?.scrollTop ?? 0;
    const height = rows?.clientHeight || 900;
    for (const at of this.pagesInSight()) if (!this.pages.has(at)) this.read(at).catch((error) => this.failed(error));
    const first = Math.max(0, Math.floor(top / ROW) - 8);
    const last = Math.min(this.matched, Math.ceil((top + height) / ROW) + 8);
    const shown = Array.from({ length: Math.max(0, last - first) }, (_, at) => first + at);
    return repeat(shown, (at) => at, (at) => this.row(at, this.pages.get(Math.floor(at / PAGE))?.[at % PAGE]));
  }

  row(at, row) {
    const place = `top:${at * ROW}px`;
    if (!row) return html`<div class="row" role="row" data-at=${at} aria-rowindex=${at + 2} .style=${place}><span role="cell" class="group">…</span></div>`;
    const fresh = performance.now() - (this.fresh.get(row.id) ?? -1e9) < 1600;
    return html`<div class="row ${fresh ? "fresh" : ""}" role="row" data-at=${at} aria-rowindex=${at + 2} .style=${place}>
      <span role="cell"><a href=${`#/s/${encodeURIComponent(row.id)}`} title=${row.id}>${shortId(row.id)}</a></span>
      <span role="cell" class="group">${visible(row.group) || "–"}<span class="labels">${labels(row)}</span></span>
      <span role="cell" class="medium"><span class="statecell"><span class="dot ${row.state}" aria-hidden="true"></span>${row.state}</span></span>
      <span role="cell" class="number">${count(row.turns)}</span>
      <span role="cell" class="number wide">${count(row.nodes)}</span>
      <span role="cell" class="number">${count(row.tokens)}</span>
      <span role="cell" class="medium">${rewardCell(row.reward)}</span>
      <span role="cell" class="marks wide">${marks(row)}</span>
      <span role="cell" class="when medium" title=${moment(row.active)}>${ago(row.active)}</span>
    </div>`;
  }
}

const labels = (row) => visible(Object.entries(row.labels).map(([name, value]) => `${name}=${value}`).join("  "));

function rewardCell(value) {
  if (value === null) return html`<span class="rewardcell"><span></span><span>–</span></span>`;
  const width = Math.min(100, Math.abs(value) * 100);
  return html`<span class="rewardcell">
    <span class="meter" aria-hidden="true"><i class=${value < 0 ? "negative" : ""} .style=${`width:${width}%`}></i></span>${reward(value)}</span>`;
}

export function marks(row) {
  return html`${row.in_flight ? html`<span class="mark accent">${row.in_flight} in flight</span>` : nothing}
    ${row.untrainable ? html`<span class="mark warn" title="Nodes that must not be trained on">${row.untrainable} untrainable</span>` : nothing}
    ${row.drifted ? html`<span class="mark warn" title="Completions whose engine saw another prompt than it was sent">${row.drifted} drift</span>` : nothing}
    ${row.incomplete ? html`<span class="mark bad" title="Calls in flight when their server died">${row.incomplete} lost</span>` : nothing}`;
}
