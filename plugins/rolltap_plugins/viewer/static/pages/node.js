// A node: every token of its sequence, what it was read as, plots, parameters, and what to paste elsewhere.

import { html, nothing, render } from "../vendor/lit-html/lit-html.js";
import { get, nodePath } from "../lib/api.js";
import { count, duration, moment, percent, reward, shortId, signed, visible } from "../lib/format.js";
import { choice, copy, empty, fact, failed, icon, loading, note, tabs } from "../lib/ui.js";
import { conversation, longText, message } from "../parts/conversation.js";
import { logprobPlot } from "../parts/plots.js";
import { asCurl, asPython } from "../parts/requests.js";
import "../parts/token-stream.js";
import { compareOrMark, table, toCompare } from "./session.js";

const TABS = { tokens: "Tokens", read: "Parsed and raw", plots: "Logprobs", parameters: "Parameters" };
const MODES = { mask: "Mask", logprob: "Logprob" };
const KINDS = [["k2", "trained on"], ["k1", "generated, masked in this sequence"], ["k0", "prompt"]];
const LEVELS = [["p0", "≥ 90 %"], ["p1", "50 – 90 %"], ["p2", "20 – 50 %"], ["p3", "5 – 20 %"], ["p4", "< 5 %"]];
const KIND_WORDS = ["prompt", "generated, masked", "trained on"];
const remembered = { tab: "tokens", mode: "mask" };

export class NodePage {
  constructor(root, [session, id]) {
    this.root = root;
    this.session = session;
    this.id = id;
    this.title = `${id} of ${shortId(session)}`;
    this.node = null;
    this.error = null;
    this.token = null;
    this.all = false;
    this.render();
    this.load();
  }

  leave() {}

  async load() {
    try {
      this.node = await get(nodePath(this.session, this.id));
      this.error = null;
    } catch (error) {
      this.error = error;
    }
    this.render();
  }

  get stream() {
    return this.root.querySelector("token-stream");
  }

  showTab(tab) {
    remembered.tab = tab;
    this.render();
  }

  setMode(mode) {
    remembered.mode = mode;
    this.render();
  }

  pressed(event) {
    const tab = Object.keys(TABS)[Number(event.key) - 1];
    const steps = { ArrowRight: 1, ArrowLeft: -1 };
    if (tab) this.showTab(tab);
    else if (event.key === "u" || event.key === "Escape") location.hash = `#/s/${encodeURIComponent(this.session)}`;
    else if (event.key === "c") this.compare();
    else if (event.key === "m") this.setMode(remembered.mode === "mask" ? "logprob" : "mask");
    else if (!this.stream) return false;
    else if (steps[event.key]) this.stream.step(steps[event.key]);
    else if (event.key === "]") this.stream.stepSegment(1);
    else if (event.key === "[") this.stream.stepSegment(-1);
    else if (event.key === "n") this.surprise(1);
    else if (event.key === "p") this.surprise(-1);
    else return false;
    return true;
  }

  surprise(by) {
    const { surprises } = this.node;
    const now = this.stream.cursor ?? (by > 0 ? -1 : Infinity);
    const next = by > 0 ? surprises.find((at) => at > now) : surprises.findLast((at) => at < now);
    if (next === undefined) note(surprises.length ? "No further unlikely token in this direction" : "No token was less likely than 5 %");
    else this.stream.moveTo(next);
  }

  compare() {
    compareOrMark(this.session, this.id);
    this.render();
  }

  render() {
    if (this.error && !this.node) return render(failed(this.error, () => this.load()), this.root);
    if (!this.node) return render(loading("the node"), this.root);
    render(html`${this.head()} ${tabs(TABS, remembered.tab, (tab) => this.showTab(tab), "Views of the node")} ${this.panel()}`, this.root);
    const stream = this.stream;
    if (stream && !stream.segments) {
      const load = (start, end) => get(nodePath(this.session, this.id, "/tokens"), { start, end });
      stream.start(this.node.segments, load, (token, aloud) => this.inspected(token, aloud));
      if (this.jumpTo !== undefined) stream.moveTo(this.jumpTo);
      this.jumpTo = undefined;
    }
    const plot = this.root.querySelector("#logprob-plot");
    if (plot && !plot.firstChild) logprobPlot(plot, this.node.plot, this.node.num_tokens, (at) => this.jump(at));
  }

  jump(at) {
    this.jumpTo = at;
    if (remembered.tab === "tokens") {
      this.stream.moveTo(at);
      this.jumpTo = undefined;
    } else this.showTab("tokens");
  }

  inspected(token, aloud) {
    this.token = token;
    this.aloud = aloud ? token : this.aloud;
    this.render();
  }

  head() {
    const { metadata, num_tokens: size, plot } = this.node;
    const times = metadata.times;
    const marked = toCompare.mark?.session === this.session && toCompare.mark.node === this.id;
    return html`<div class="pagehead">
      <nav class="crumbs" aria-label="Where this is"><a href="#/">Sessions</a>${icon("next")}<a class="mono" href=${`#/s/${encodeURIComponent(this.session)}`}>${shortId(this.session)}</a>${icon("next")}<span class="mono">${visible(shortId(this.id))}</span></nav>
      <div class="line">
        <h1 class="mono">${visible(shortId(this.id))}</h1>
        ${metadata.trainable ? html`<span class="mark accent">trainable</span>` : html`<span class="mark warn">untrainable</span>`}
        ${metadata.lineage ? html`<span class="mark">${visible(metadata.lineage)}</span>` : nothing}
        ${metadata.delivery === "aborted" ? html`<span class="mark bad">aborted</span>` : nothing}
        <span class="grow"></span>
        <span class="buttons" role="group" aria-label="Copy">
          <button class="button" @click=${() => copy(asCurl(this.node), "the request as curl")}>Copy curl</button>
          <button class="button" @click=${() => copy(asPython(this.node), "the request as Python")}>Copy Python</button>
          <button class="button" @click=${() => this.copyIds()}>Copy ids</button>
          <button class="button" aria-pressed=${marked ? "true" : "false"} @click=${() => this.compare()}>${toCompare.mark && !marked ? "Compare with the marked" : "Compare"}</button>
        </span>
      </div>
      ${metadata.trainable ? nothing : html`<p class="reasonline">Not to be trained on: ${visible(metadata.untrainable_reason ?? "no reason was recorded")}</p>`}
      ${metadata.branch_reason ? html`<p class="branchline">${icon("branch")}Branched: ${visible(metadata.branch_reason)}</p>` : nothing}
      <dl class="facts">
        ${fact("Sequence", `${count(size)} tokens`)} ${fact("Generated here", count(metadata.num_generated ?? 0))} ${fact("Trained on", count(metadata.num_trainable ?? 0))}
        ${fact("Mean logprob", signed(plot.mean_of_all))} ${fact("Ended by", metadata.finish_reason ?? "–")}
        ${times ? fact("Took", duration(times.ended - times.received), moment(times.received)) : nothing}
        ${fact("Backend", visible(metadata.backend ?? "–"))} ${metadata.reward === undefined ? nothing : fact("Reward", reward(metadata.reward))}
      </dl>
    </div>`;
  }

  async copyIds() {
    try {
      const { tokens } = await get(nodePath(this.session, this.id, "/ids"));
      await copy(JSON.stringify(tokens), `${count(tokens.length)} ids`);
    } catch (error) {
      note(error.message);
    }
  }

  panel() {
    const labelled = `tab-${remembered.tab}`;
    if (remembered.tab === "tokens") return this.tokens(labelled);
    const inside = { read: () => this.read(), plots: () => this.plots(), parameters: () => this.parameters() }[remembered.tab]();
    return html`<div class="scroll" role="tabpanel" id="panel" aria-labelledby=${labelled} tabindex="0"><div class="narrow">${inside}</div></div>`;
  }

  tokens(labelled) {
    const { mode } = remembered;
    if (!this.node.num_tokens) {
      return html`<div class="scroll" role="tabpanel" id="panel" aria-labelledby=${labelled} tabindex="0">${empty("No token ids", "This backend works in text, so none were recorded. What was said is under “Parsed and raw”.")}</div>`;
    }
    return html`<div class="tokens" role="tabpanel" id="panel" aria-labelledby=${labelled}>
      <div class="tools">
        ${choice("Colour tokens by", MODES, mode, (value) => this.setMode(value))}
        ${(mode === "mask" ? KINDS : LEVELS).map(([name, title]) => html`<span class="swatch"><i class=${name} aria-hidden="true"></i>${title}</span>`)}
      </div>
      <token-stream mode=${mode} aria-label="Tokens; arrow keys move from one to the next"></token-stream>
      <aside class="inspector" aria-label="The token under the cursor">${this.inspector()}</aside>
    </div>`;
  }

  inspector() {
    const { token } = this;
    const jump = html`<form class="jump" @submit=${(event) => this.submitted(event)}>
      <input inputmode="numeric" aria-label="Go to a position" placeholder="Position" name="at" /><button class="button">Go</button></form>
      <p class="keys"><span><kbd>←</kbd> <kbd>→</kbd> token</span><span><kbd>[</kbd> <kbd>]</kbd> message</span><span><kbd>p</kbd> <kbd>n</kbd> unlikely token (${count(this.node.surprises.length)})</span><span><kbd>m</kbd> mask or logprob</span></p>`;
    if (!token) return html`<p>Point at a token, or press an arrow key.</p>${jump}`;
    const known = token.kind > 0 && token.logprob !== null;
    return html`
      <bdi class="piece">${token.piece === "" ? "(part of the character before)" : visible(token.piece).replaceAll(" ", "·").replaceAll("\n", "↵\n")}</bdi>
      <div class="chance" aria-hidden="true"><i .style=${`width:${known ? Math.exp(token.logprob) * 100 : 0}%`}></i></div>
      <dl class="settings">
        <dt>Id</dt><dd class="mono">${token.id}</dd>
        <dt>Position</dt><dd>${count(token.at)}</dd>
        <dt>Logprob</dt><dd>${known ? signed(token.logprob, 4) : "–"}</dd>
        <dt>Probability</dt><dd>${known ? percent(token.logprob) : "–"}</dd>
        <dt>Mask</dt><dd>${KIND_WORDS[token.kind]}</dd>
        <dt>Version</dt><dd>${token.version ?? "–"}</dd>
      </dl>
      <span class="hidden-text" role="status">${this.aloud ? `Token ${this.aloud.at}: ${visible(this.aloud.piece)}, ${KIND_WORDS[this.aloud.kind]}` : ""}</span>
      ${jump}`;
  }

  submitted(event) {
    event.preventDefault();
    const at = Number(new FormData(event.target).get("at"));
    if (Number.isInteger(at) && at >= 0 && at < this.node.num_tokens) this.stream.moveTo(at);
    else note(`Positions go from 0 to ${count(this.node.num_tokens - 1)}`);
  }

  read() {
    const { messages, raw } = this.node;
    return html`
      <section><h2>This node's output</h2>
        <div class="two">
          <div class="side"><header>As it was parsed</header><div class="inner">${messages.length ? message(messages.at(-1), messages.length - 1, true) : empty("No message", "A raw completion has none.")}</div></div>
          <div class="side"><header>Raw text</header><div class="inner">${longText(raw, "mono")}</div></div>
        </div>
      </section>
      <section><h2>What the agent sent</h2>
        ${messages.length > 1 ? conversation(messages.slice(0, -1), this.all, () => this.showAll()) : empty("No messages", "The prompt was a raw text.")}
      </section>
      <section><h2>Tools</h2>
        ${this.node.tools.length ? this.node.tools.map((tool) => longText(JSON.stringify(tool, null, 2), "mono")) : html`<p class="lead">None were offered.</p>`}
      </section>`;
  }

  showAll() {
    this.all = true;
    this.render();
  }

  plots() {
    const { plot, surprises } = this.node;
    if (!plot.position.length) return empty("No logprobs", "The engine gave none for this sequence.");
    return html`<figure class="plot"><figcaption><b>Logprob along the sequence</b><span class="legend">
        <span><i class="generate"></i>${plot.slice > 1 ? `mean of ${plot.slice} tokens` : "one token"}</span>${plot.slice > 1 ? html`<span><i .style=${"background:var(--warn)"}></i>the least of them</span>` : nothing}
      </span></figcaption><div id="logprob-plot"></div></figure>
      <p class="lead">${count(surprises.length)} tokens were less likely than 5 %. Click into the plot to see a place among the tokens.</p>`;
  }

  parameters() {
    const { metadata } = this.node;
    const { sampling, times, usage, rewards, weight_versions: versions, ...rest } = metadata;
    const seconds = times && {
      received: moment(times.received),
      waited: duration(times.sent - times.received),
      "first token after": times.first_token ? duration(times.first_token - times.sent) : null,
      generation: times.first_token ? duration(times.ended - times.first_token) : null,
    };
    const cards = [
      ["Effective parameters", sampling],
      ["Times", seconds],
      ["Tokens of the call", usage],
      ["Rewards", rewards],
      ["Weights", { "start, end, version": versions }],
    ];
    return html`<div class="cards">
      ${cards.map(([title, values]) => card(title, values))}
      ${card("Everything else", rest, "all")}
    </div>`;
  }
}

const card = (title, values, classes = "") => html`<section class="side ${classes}"><header><h2>${title}</h2></header><div class="inner">${table(values ?? {})}</div></section>`;
