// Two nodes: where their messages part, and where their ids do.

import { html, nothing, render } from "../vendor/lit-html/lit-html.js";
import { get } from "../lib/api.js";
import { count, shortId, visible } from "../lib/format.js";
import { failed, icon, loading } from "../lib/ui.js";

const AROUND = 160;

export class ComparePage {
  title = "Compare";

  constructor(root, [aSession, aNode, bSession, bNode]) {
    this.root = root;
    this.sides = [[aSession, aNode], [bSession, bNode]];
    this.load();
  }

  leave() {}

  async load() {
    render(loading("both nodes"), this.root);
    try {
      const [a, b] = this.sides.map((side) => side.join("/"));
      this.show(await get("compare", { a, b }));
    } catch (error) {
      render(failed(error, () => this.load()), this.root);
    }
  }

  pressed(event) {
    if (event.key !== "u" && event.key !== "Escape") return false;
    location.hash = `#/s/${encodeURIComponent(this.sides[0][0])}`;
    return true;
  }

  show(found) {
    render(
      html`<div class="pagehead">
          <nav class="crumbs" aria-label="Where this is"><a href="#/">Sessions</a>${icon("next")}<span>Compare</span></nav>
          <h1>Two nodes</h1>
        </div>
        <div class="scroll" tabindex="0"><div class="narrow">
          <div class="two">${this.sides.map(([session, node], at) => this.name("AB"[at], session, node, at ? found.b : found.a))}</div>
          ${messages(found.messages)} ${ids(found.ids)} ${others(found)}
        </div></div>`,
      this.root,
    );
  }

  name(letter, session, node, metadata) {
    return html`<div class="side"><header><span class="mark accent">${letter}</span>
      <a class="mono" href=${`#/s/${encodeURIComponent(session)}/${encodeURIComponent(node)}`}>${shortId(session)} / ${visible(shortId(node))}</a>
      <span class="grow"></span>${metadata.trainable ? nothing : html`<span class="mark warn">untrainable</span>`}</header></div>`;
  }
}

const equal = (words) => html`<p class="same-all"><span class="dot good" aria-hidden="true"></span>${words}</p>`;

function messages(difference) {
  if (!difference) return html`<section><h2>Messages</h2>${equal("All messages are the same.")}</section>`;
  const { index, fields, a, b, lengths } = difference;
  const words = !a || !b ? `${a ? "B" : "A"} ends before messages[${index}].` : `They part at messages[${index}], in ${fields.join(", ")}.`;
  return html`<section><h2>Messages</h2><p class="lead">${words} A has ${count(lengths[0])}, B has ${count(lengths[1])}.</p>
    ${(a && b ? fields : ["content"]).map((field) => texts(field, written(a?.[field]), written(b?.[field])))}
  </section>`;
}

const written = (value) => (value === undefined || value === null ? "" : typeof value === "string" ? value : JSON.stringify(value, null, 2));

function texts(field, ours, theirs) {
  let at = 0;
  while (at < ours.length && at < theirs.length && ours[at] === theirs[at]) at += 1;
  const side = (letter, text) => {
    const from = Math.max(0, at - AROUND);
    const end = at + 2000;
    return html`<div class="side"><header><span class="mark accent">${letter}</span>${visible(field)}<span class="grow"></span>${count(text.length)} characters</header>
      <div class="inner diff">${text ? html`<span class="same">${from ? "…" : ""}${visible(text.slice(from, at))}</span><mark>${visible(text.slice(at, end))}</mark>${text.length > end ? "…" : ""}` : html`<span class="same">nothing</span>`}</div></div>`;
  };
  return html`<div class="two">${side("A", ours)}${side("B", theirs)}</div>`;
}

function ids(difference) {
  if (!difference) return html`<section><h2>Token ids</h2>${equal("All ids are the same.")}</section>`;
  const { index, a, b, lengths } = difference;
  return html`<section><h2>Token ids</h2>
    <p class="lead">They are the same up to position ${count(index)}. A has ${count(lengths[0])}, B has ${count(lengths[1])}.</p>
    <div class="two">${pieces("A", a, index)}${pieces("B", b, index)}</div></section>`;
}

function pieces(letter, window, index) {
  const here = window.ids[index - window.start];
  return html`<div class="side"><header><span class="mark accent">${letter}</span>${here === undefined ? "ends here" : html`id <span class="mono">${here}</span> at ${count(index)}`}</header>
    <div class="inner diff">${window.pieces.map(
      (piece, at) => html`<span class="t ${window.start + at >= index ? "other" : "same"}" title=${`id ${window.ids[at]} at ${window.start + at}`}>${visible(piece || "·").replaceAll("\n", "↵\n")}</span>`,
    )}</div></div>`;
}

function others({ tools_differ: tools, sampling_differs: sampling, a, b }) {
  return html`<section><h2>Besides</h2>
    ${tools ? html`<p>The tools differ.</p>` : equal("The same tools were offered.")}
    ${sampling ? html`<p>The parameters differ: A ${visible(JSON.stringify(a.sampling))}, B ${visible(JSON.stringify(b.sampling))}.</p>` : equal("The same parameters.")}
    ${a.model === b.model ? nothing : html`<p>The models differ: ${visible(a.model)} and ${visible(b.model)}.</p>`}
  </section>`;
}
