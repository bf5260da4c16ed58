// What happens now: entries as they are recorded, backends and what is in flight.

import { html, nothing, render } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import { get } from "../lib/api.js";
import { clock, compact, count, duration, plural, reward, shortId, visible } from "../lib/format.js";
import { calmly, live, onEvent } from "../lib/live.js";
import { empty, failed, loading } from "../lib/ui.js";

const KEPT = 300;
const feed = [];
let number = 0;

// Kept from the first page on, so that there is something to see when one comes here.
onEvent((event) => {
  if (!event.session || event.kind === "begun" || event.kind === "unknown") return;
  number += 1;
  feed.unshift({ ...event, number });
  feed.length = Math.min(feed.length, KEPT);
});

export class LivePage {
  title = "Live";

  constructor(root) {
    this.root = root;
    this.held = null;
    this.data = null;
    this.error = null;
    const again = calmly(() => this.render(), 100, 300);
    this.stop = onEvent(() => again());
    this.timer = setInterval(() => this.load(), 2000);
    this.render();
    this.load();
  }

  leave() {
    this.stop();
    clearInterval(this.timer);
  }

  async load() {
    try {
      this.data = await get("overview");
      this.error = null;
    } catch (error) {
      this.error = error;
    }
    this.render();
  }

  hold() {
    this.held = this.held ? null : [...feed];
    this.render();
  }

  render() {
    if (this.error && !this.data) return render(failed(this.error, () => this.load()), this.root);
    if (!this.data) return render(loading("what runs"), this.root);
    const shown = this.held ?? feed;
    render(
      html`<div class="pagehead"><div class="line"><h1>Live</h1>${this.data.paused ? html`<span class="mark warn" role="status">Paused ${this.data.paused_since ? `since ${clock(this.data.paused_since)}` : ""}: calls wait until weights are updated</span>` : nothing}${this.error ? html`<span class="mark bad" role="alert">${this.error.message}</span>` : nothing}</div></div>
      <div class="live">
        <div class="stack">${this.models()} ${this.counts()}</div>
        <section class="card" aria-labelledby="feed-title">
          <header><h2 id="feed-title">As it is recorded</h2><span class="mark ${live.state === "connected" ? "accent" : "bad"}">${live.state === "connected" ? "connected" : "not connected"}</span>
            <span class="grow"></span><button class="button" aria-pressed=${this.held ? "true" : "false"} @click=${() => this.hold()}>${this.held ? "Go on" : "Hold"}</button></header>
          ${shown.length ? html`<ul class="feed">${repeat(shown, (event) => event.number, item)}</ul>` : empty("Nothing yet", "Calls, rewards and new sessions appear here as they are recorded.")}
        </section>
      </div>`,
      this.root,
    );
  }

  models() {
    return this.data.models.map(
      (model) => html`<section class="card" aria-label=${`Model ${model.name}`}>
        <header><h2>${visible(model.name)}</h2>${model.name in this.data.versions ? html`<span class="mark">weights ${visible(this.data.versions[model.name])}</span>` : nothing}<span class="grow"></span><span class="totals">${plural(model.backends.length, "backend")}</span></header>
        ${model.backends.map(backend)}
      </section>`,
    );
  }

  counts() {
    const { sessions, open, tokens, counts, version } = this.data;
    return html`<section class="card" aria-labelledby="counts-title"><header><h2 id="counts-title">Since the start</h2><span class="grow"></span><span class="totals">rolltap ${version}</span></header>
      <dl class="inner counts"><dt>sessions</dt><dd>${count(sessions)}</dd><dt>open</dt><dd>${count(open)}</dd><dt>generated tokens</dt><dd>${compact(tokens)}</dd>
        ${Object.entries(counts).map(([name, value]) => html`<dt>${visible(name.replaceAll("_", " "))}</dt><dd>${count(value)}</dd>`)}
      </dl></section>`;
  }
}

function backend(each) {
  return html`<div class="backend"><span class="dot ${each.healthy ? "good" : "down"}" aria-hidden="true"></span>
    <span>${visible(each.name)} <span class="hidden-text">${each.healthy ? "healthy" : "not healthy"}</span></span>
    <span class="totals"><b>${count(each.in_flight)}</b> in flight, <b>${count(each.queued)}</b> waiting</span>
    <span class="mono">${visible(each.url || "in this process")}${each.healthy ? nothing : html` <span class="mark bad">not healthy, asked again in ${duration(each.retry_in_s)}</span>`}</span>
    ${each.last_error ? html`<span class="trouble">${visible(each.last_error)}</span>` : nothing}</div>`;
}

function item(event) {
  const [what, much] = words(event);
  const node = event.nodes?.[0];
  const link = `#/s/${encodeURIComponent(event.session)}${event.kind === "call" && node ? `/${encodeURIComponent(node)}` : ""}`;
  return html`<li><time>${clock(event.at)}</time><a href=${link} title=${event.session}>${shortId(event.session)}</a><span class="what">${what}</span><span class="much">${much ?? nothing}</span></li>`;
}

function words(event) {
  switch (event.kind) {
    case "created":
      return [html`<b>New session</b> ${visible(event.group)}`, visible(event.model)];
    case "call":
      return [
        html`${event.calls.length ? html`<b>calls ${visible(event.calls.join(", "))}</b> ` : nothing}${visible(event.said)} ${event.trainable ? nothing : html`<span class="mark warn">untrainable</span>`}`,
        `${count(event.generated)} tok · ${duration(event.seconds)}`,
      ];
    case "failed":
      return [html`<span class="mark bad">failed</span> ${visible(event.reason)}`];
    case "delivery":
      return [event.delivery === "aborted" ? "The client left before it had everything" : "The client has it now"];
    case "reward":
      return [html`<b>Reward</b> ${event.name === "reward" ? nothing : visible(event.name)}`, reward(event.value)];
    case "sealed":
      return [html`<b>Sealed</b>`];
    default:
      return [html`<b>Deleted</b>`];
  }
}
