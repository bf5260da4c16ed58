// Messages as they were read: thinking, content, calls. Every text is shown as text, whatever it holds.

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { count, pretty, visible } from "../lib/format.js";

const FIRST = 4000;
const MORE = 50000;

// A text that shows its beginning, and more of it when asked: a line of a million characters must not stop the page.
class LongText extends HTMLElement {
  set text(value) {
    if (value === this.whole) return;
    this.whole = value;
    this.shown = value.length > FIRST * 1.25 ? FIRST : value.length;
    this.fill();
  }

  fill() {
    const body = document.createElement("span");
    body.className = `text ${this.className}`;
    body.dir = "auto";
    body.textContent = visible(this.whole.slice(0, this.shown));
    this.replaceChildren(body);
    const left = this.whole.length - this.shown;
    if (left > 0) {
      const more = document.createElement("button");
      more.className = "more";
      more.textContent = `Show ${count(Math.min(MORE, left))} more of ${count(this.whole.length)} characters`;
      more.onclick = () => {
        this.shown += Math.min(MORE, left);
        this.fill();
      };
      this.append(more);
    }
  }
}
customElements.define("long-text", LongText);

export const longText = (text, classes = "") => html`<long-text class=${classes} .text=${text ?? ""}></long-text>`;

const NAMES = { tool: "Tool result", assistant: "Assistant", user: "User", system: "System", developer: "Developer" };
const TALL = 1200;

function content(message) {
  const parts = typeof message.content === "string" ? [{ type: "text", text: message.content }] : (message.content ?? []);
  return parts.map((part) => {
    if (part.type === "text") return part.text ? foldable(message, part.text) : nothing;
    const url = part.image_url?.url ?? "";
    if (/^data:image\/(png|jpeg|gif|webp);/.test(url)) return html`<img class="picture" alt="An image of the conversation" src=${url} />`;
    return html`<span class="mark">${part.type}</span>${longText(url || JSON.stringify(part), "mono")}`;
  });
}

function foldable(message, text) {
  if (message.role !== "system" && message.role !== "developer") return longText(text);
  if (text.length < TALL) return longText(text);
  return html`<details class="fold"><summary>${visible(text.slice(0, 110))}… (${count(text.length)} characters)</summary>${longText(text)}</details>`;
}

export function messageBody(message) {
  return html`<div class="content">
    ${message.reasoning_content ? html`<details class="thinking" ?open=${message.reasoning_content.length < 700}><summary>Thinking</summary>${longText(message.reasoning_content)}</details>` : nothing}
    ${content(message)}
    ${(message.tool_calls ?? []).map(
      (call) => html`<div class="toolcall"><header>${visible(call.function.name)}<span>${visible(call.id ?? "")}</span></header>${longText(pretty(call.function.arguments), "mono")}</div>`,
    )}
  </div>`;
}

export function message(each, index, isAnswer = false) {
  return html`<article class="message ${each.role} ${isAnswer ? "answer" : ""}">
    <header>${NAMES[each.role] ?? visible(each.role)}<span>${isAnswer ? "its output" : `messages[${index}]`}</span></header>
    ${messageBody(each)}
  </article>`;
}

const MOST = 60;

// The last messages; those before them when asked.
export function conversation(messages, all, showAll) {
  const hidden = all ? 0 : Math.max(0, messages.length - MOST);
  return html`<div class="conversation">
    ${hidden ? html`<button class="more" @click=${showAll}>Show the ${count(hidden)} messages before</button>` : nothing}
    ${messages.slice(hidden).map((each, at) => message(each, at + hidden, at + hidden === messages.length - 1))}
  </div>`;
}
