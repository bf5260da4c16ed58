// A session: the forest at the left; at the right what was said, when, and how much, of the completion that is chosen.

import { html, nothing, render } from "../vendor/lit-html/lit-html.js";
import { get, nodePath } from "../lib/api.js";
import { ago, count, moment, plural, reward, shortId, visible } from "../lib/format.js";
import { calmly, onEvent } from "../lib/live.js";
import { empty, fact, failed, icon, loading, note, tabs } from "../lib/ui.js";
import { conversation } from "../parts/conversation.js";
import { callNumbers, forest } from "../parts/forest.js";
import { LATENCY_PARTS, TOKEN_PARTS, latencyPlot, tokenPlot } from "../parts/plots.js";
import { callsOf, timeline } from "../parts/timeline.js";
import { marks } from "./sessions.js";

const TABS = { conversation: "Conversation", timeline: "Timeline", plots: "Plots", settings: "Settings" };
const remembered = { tab: "conversation", chosen: new Map() };

// The node that the next one will be compared with: {session, node}.
export const toCompare = { mark: null };

export function compareOrMark(session, node) {
  const { mark } = toCompare;
  if (mark && (mark.session !== session || mark.node !== node)) {
    toCompare.mark = null;
    location.hash = `#/compare/${[mark.session, mark.node, session, node].map(encodeURIComponent).join("/")}`;
    return;
  }
  toCompare.mark = mark ? null : { session, node };
  note(mark ? "No longer marked" : "Marked. Choose another node and compare it with this one.");
}

export class SessionPage {
  constructor(root, [id]) {
    this.root = root;
    this.id = id;
    this.title = shortId(id);
    this.data = null;
    this.error = null;
    this.node = null;
    this.nodeError = null;
    this.all = false;
    const again = calmly(() => this.load());
    this.stop = onEvent((event) => {
      if (event.session === id && event.kind === "deleted") this.error = { message: "This session was deleted.", status: 404 };
      if (event.session === id || event.kind === "connected") again();
    });
    this.render();
    this.load();
  }

  leave() {
    this.stop();
  }

  async load() {
    try {
      const before = this.data;
      this.data = await get(`sessions/${encodeURIComponent(this.id)}`);
      this.error = null;
      const nodes = this.data.nodes;
      const wasLast = before && before.nodes.at(-1)?.id === this.chosen;
      if (!this.chosen || wasLast) this.chosen = remembered.chosen.get(this.id) ?? nodes.at(-1)?.id ?? null;
      if (wasLast) this.chosen = nodes.at(-1)?.id;
    } catch (error) {
      this.error = error;
    }
    this.render();
    if (this.chosen && this.node?.id !== this.chosen) await this.loadNode();
  }

  async loadNode() {
    const wanted = this.chosen;
    this.nodeError = null;
    try {
      const node = await get(nodePath(this.id, wanted));
      if (wanted !== this.chosen) return;
      this.node = node;
      this.all = false;
    } catch (error) {
      this.nodeError = error;
    }
    this.render();
  }

  choose(id) {
    this.chosen = id;
    remembered.chosen.set(this.id, id);
    this.render();
    this.loadNode();
  }

  open(id) {
    location.hash = `#/s/${encodeURIComponent(this.id)}/${encodeURIComponent(id)}`;
  }

  showTab(tab) {
    remembered.tab = tab;
    this.render();
  }

  pressed(event) {
    const nodes = this.data?.nodes ?? [];
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    const tab = Object.keys(TABS)[Number(event.key) - 1];
    if (step && nodes.length) {
      const at = nodes.findIndex((node) => node.id === this.chosen);
      this.choose(nodes[Math.max(0, Math.min(nodes.length - 1, at + step))].id);
      const row = this.root.querySelector('.forest [aria-current="true"]');
      row?.scrollIntoView({ block: "nearest" });
      row?.focus({ preventScroll: true });
    } else if (event.key === "Enter" && this.chosen && (event.target === document.body || event.target.matches(".call"))) this.open(this.chosen);
    else if (event.key === "u" || event.key === "Escape") location.hash = "#/";
    else if (event.key === "c" && this.chosen) this.compare();
    else if (tab) this.showTab(tab);
    else return false;
    return true;
  }

  compare() {
    compareOrMark(this.id, this.chosen);
    this.render();
  }

  render() {
    if (this.error && !this.data) return render(failed(this.error, () => this.load()), this.root);
    if (!this.data) return render(loading("the session"), this.root);
    render(html`${this.head()} ${this.body()}`, this.root);
    if (remembered.tab === "plots") this.drawPlots();
  }

  head() {
    const { session } = this.data;
    const labels = Object.entries(session.labels ?? {});
    return html`<div class="pagehead">
      <nav class="crumbs" aria-label="Where this is"><a href="#/">Sessions</a>${icon("next")}<span>${visible(session.group) || "no group"}</span></nav>
      <div class="line">
        <h1 class="mono" title=${session.id}>${shortId(session.id)}</h1>
        <span class="mark ${session.state === "open" ? "accent" : ""}">${session.state}</span>
        ${labels.map(([name, value]) => html`<span class="mark">${visible(`${name}: ${value}`)}</span>`)} ${marks(session)}
        ${this.error ? html`<span class="mark bad" role="alert">${this.error.message}</span>` : nothing}
      </div>
      <dl class="facts">
        ${fact("Model", visible(session.model))} ${fact("Calls", count(session.turns))} ${fact("Sequences", count(session.nodes), "What a trainer gets: one a leaf")}
        ${fact("Generated", `${count(session.tokens)} tokens`)} ${fact("Reward", reward(session.reward))}
        ${fact("Created", moment(session.created))} ${fact("Last active", ago(session.active), moment(session.active))}
      </dl>
    </div>`;
  }

  body() {
    const { nodes } = this.data;
    if (!nodes.length) return empty("No calls yet", "The first answer appears here as soon as it has been recorded.");
    const marked = toCompare.mark?.session === this.id ? toCompare.mark.node : null;
    return html`<div class="split">
      <section class="pane trees" aria-labelledby="forest-title">
        <div class="panetitle"><h2 id="forest-title">Forest</h2><span class="aside">${plural(nodes.length, "completion")}, ${plural(nodes.filter((node) => !node.parent_id).length, "tree")}</span></div>
        <div class="scroll" tabindex="-1">${forest(nodes, this.chosen, marked, (id) => this.choose(id), (id) => this.open(id))}</div>
      </section>
      <section class="pane detail" aria-label="The chosen completion">
        <div class="chosen">
          <h2>Call ${callNumbers(nodes).get(nodes.find((node) => node.id === this.chosen)?.call_id)}</h2><span class="grow"></span>
          <span class="buttons">
            <button class="button" aria-pressed=${marked !== null && marked === this.chosen ? "true" : "false"} @click=${() => this.compare()}>${toCompare.mark && marked !== this.chosen ? "Compare with the marked" : "Compare"}</button>
            <a class="button primary" href=${`#/s/${encodeURIComponent(this.id)}/${encodeURIComponent(this.chosen)}`}>Tokens</a>
          </span>
        </div>
        ${tabs(TABS, remembered.tab, (tab) => this.showTab(tab), "Views of the session")}
        <div class="scroll panel" id="panel" role="tabpanel" aria-labelledby=${`tab-${remembered.tab}`} tabindex="0">${this.panel()}</div>
      </section>
    </div>`;
  }

  panel() {
    const { nodes, session } = this.data;
    if (remembered.tab === "timeline") return timeline(nodes, this.chosen, (id) => this.choose(id));
    if (remembered.tab === "plots") return plotsOf();
    if (remembered.tab === "settings") return settings(session);
    if (this.nodeError) return failed(this.nodeError, () => this.loadNode());
    if (this.node?.id !== this.chosen) return loading("the conversation");
    return conversation(this.node.messages, this.all, () => {
      this.all = true;
      this.render();
    });
  }

  drawPlots() {
    const drawn = this.root.querySelector("#token-plot");
    if (!drawn || (this.plotted === this.data && this.plottedIn === drawn)) return;
    const calls = callsOf(this.data.nodes);
    tokenPlot(drawn, calls);
    latencyPlot(this.root.querySelector("#latency-plot"), calls);
    this.plotted = this.data;
    this.plottedIn = drawn;
  }
}

function plotsOf() {
  const legend = (parts) => html`<span class="legend">${parts.map(([title, , name]) => html`<span><i .style=${`background:var(${name})`}></i>${title}</span>`)}</span>`;
  return html`
    <figure class="plot"><figcaption><b>Tokens by turn</b>${legend(TOKEN_PARTS)}</figcaption><div id="token-plot"></div></figure>
    <figure class="plot"><figcaption><b>Latency by turn</b>${legend(LATENCY_PARTS)}</figcaption><div id="latency-plot"></div></figure>`;
}

export function table(values) {
  const entries = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  if (!entries.length) return html`<p class="aside">None.</p>`;
  return html`<dl class="settings">${entries.map(([name, value]) => html`<dt>${visible(name)}</dt><dd class="mono">${visible(typeof value === "string" ? value : JSON.stringify(value))}</dd>`)}</dl>`;
}

function settings(session) {
  const { id, model, tool_parser, base_url, track_tree, created, metadata, sampling, rewards } = session;
  return html`
    <h2 class="sub">Session</h2>${table({ id, model, tool_parser, base_url, track_tree, created: moment(created) })}
    <h2>Pinned sampling</h2>${table(sampling ?? {})}
    <h2>Rewards</h2>${table(rewards ?? {})}
    <h2>Metadata</h2>${table(metadata ?? {})}`;
}
