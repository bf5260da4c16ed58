// A sequence's tokens as flowing text. Only blocks near the window hold elements; the others keep their height.

import { count, plural, visible } from "../lib/format.js";

const PAGE = 1024;
const COLLAPSED = 24; // parts of the prompt that are longer begin closed
const NEAR = "900px 0px";
const MARGIN = 36;
const LEVELS = [Math.log(0.9), Math.log(0.5), Math.log(0.2), Math.log(0.05)];

export const TITLES = { system: "System", user: "User", tool: "Tool result", assistant: "Assistant", developer: "Developer", prompt: "Prompt" };

function level(logprob) {
  if (logprob === null || logprob === undefined) return "none";
  const at = LEVELS.findIndex((least) => logprob >= least);
  return `p${at < 0 ? LEVELS.length : at}`;
}

class TokenStream extends HTMLElement {
  // `load(start, end)` resolves to a window of the sequence; `inspect(token)` is told where the cursor is.
  start(segments, load, inspect) {
    this.load = load;
    this.inspect = inspect;
    this.pages = new Map();
    this.tabIndex = 0;
    this.setAttribute("role", "region");
    this.near = new IntersectionObserver((entries) => this.moved(entries), { root: this, rootMargin: NEAR });
    this.segments = segments.map((segment) => this.section(segment));
    this.replaceChildren(...this.segments.map((segment) => segment.section));
    this.onmouseover = (event) => this.hovered(event);
    this.onclick = (event) => this.clicked(event);
    this.total = segments.at(-1)?.end ?? 0;
    this.cursor = null;
    this.held = false; // whether the cursor stays in sight: until the person scrolls
    for (const kind of ["wheel", "touchmove", "pointerdown"]) this.addEventListener(kind, () => (this.held = false), { passive: true });
  }

  disconnectedCallback() {
    this.near?.disconnect();
  }

  section(given) {
    const section = document.createElement("section");
    section.className = `segment ${given.kind ? "assistant" : "given"}`;
    const button = document.createElement("button");
    const size = given.end - given.start;
    const title = document.createElement("b");
    title.textContent = TITLES[given.role] ?? visible(given.role);
    const element = document.createElement("bdi");
    element.className = "preview";
    const range = document.createElement("span");
    range.className = "range";
    range.textContent = `${plural(size, "token")} · ${count(given.start)}`;
    button.append(chevron(), title, element, range);
    const blocks = document.createElement("div");
    blocks.className = "blocks";
    section.append(button, blocks);
    const segment = { ...given, section, button, element, blocks, list: null };
    button.onclick = () => this.toggle(segment, blocks.hidden);
    this.toggle(segment, given.kind > 0 || size <= COLLAPSED);
    return segment;
  }

  toggle(segment, open) {
    segment.blocks.hidden = !open;
    segment.button.setAttribute("aria-expanded", String(open));
    segment.element.textContent = open ? "" : visible(segment.preview).replace(/\s+/g, " ");
    if (open && !segment.list) this.makeBlocks(segment);
  }

  makeBlocks(segment) {
    segment.list = [];
    const starts = [[segment.start], ...segment.cuts];
    starts.forEach(([start], index) => {
      const [end, atLine] = starts[index + 1] ?? [segment.end, true];
      const element = document.createElement("div");
      element.className = atLine ? "block" : "block cut";
      const block = { start, end, element, filled: false };
      element.style.height = `${Math.ceil((block.end - start) / 18) * 23}px`;
      element.block = block;
      segment.list.push(block);
      segment.blocks.append(element);
      this.near.observe(element);
    });
  }

  moved(entries) {
    for (const { target, isIntersecting, boundingClientRect } of entries) {
      const { block } = target;
      block.near = isIntersecting;
      if (isIntersecting) this.fill(block);
      else if (block.filled) {
        target.style.height = `${boundingClientRect.height}px`;
        target.replaceChildren();
        block.filled = false;
      }
    }
  }

  async page(number) {
    if (!this.pages.has(number)) {
      if (this.pages.size > 60) this.pages.delete(this.pages.keys().next().value);
      this.pages.set(number, this.load(number * PAGE, (number + 1) * PAGE));
    }
    try {
      return await this.pages.get(number);
    } catch (error) {
      this.pages.delete(number);
      throw error;
    }
  }

  async tokens(start, end) {
    const found = [];
    for (let number = Math.floor(start / PAGE); number * PAGE < end; number += 1) {
      const page = await this.page(number);
      for (let at = Math.max(start, page.start); at < Math.min(end, page.start + page.ids.length); at += 1) found.push(tokenOf(page, at));
    }
    return found;
  }

  async fill(block) {
    if (block.filled) return;
    let tokens;
    try {
      tokens = await this.tokens(block.start, block.end);
    } catch (error) {
      block.element.textContent = error.message;
      return;
    }
    if (block.filled || (!block.near && !block.wanted)) return;
    block.filled = true;
    block.element.replaceChildren(...tokens.map(tokenElement));
    block.element.style.height = "";
    this.markCursor();
    if (this.held) this.reveal(); // what was filled above may have moved it away
  }

  hovered(event) {
    const element = event.target.closest?.(".t");
    if (element) this.show(Number(element.dataset.at), false);
  }

  clicked(event) {
    const element = event.target.closest?.(".t");
    if (element) this.moveTo(Number(element.dataset.at));
  }

  async show(at, aloud) {
    const [token] = await this.tokens(at, at + 1);
    if (token) this.inspect(token, aloud);
  }

  // Puts the cursor onto a token, opens what it stands in and scrolls there.
  async moveTo(at) {
    if (!this.total) return;
    this.cursor = Math.max(0, Math.min(this.total - 1, at));
    const segment = this.segments.find(({ start, end }) => this.cursor >= start && this.cursor < end);
    if (segment.blocks.hidden) this.toggle(segment, true);
    const block = segment.list.find(({ end }) => this.cursor < end);
    block.wanted = true;
    await this.fill(block);
    block.wanted = false;
    this.markCursor();
    this.held = true;
    this.reveal();
    await this.show(this.cursor, true);
  }

  // Scrolls to the cursor where it is out of sight.
  reveal() {
    const here = this.querySelector(".here")?.getBoundingClientRect();
    const window = this.getBoundingClientRect();
    if (here && (here.top < window.top + MARGIN || here.bottom > window.bottom - MARGIN)) this.scrollTop += here.top - window.top - window.height / 2;
  }

  markCursor() {
    for (const element of this.querySelectorAll(".here")) if (Number(element.dataset.at) !== this.cursor) element.classList.remove("here");
    if (this.cursor !== null) this.querySelector(`[data-at="${this.cursor}"]`)?.classList.add("here");
  }

  step(by) {
    this.moveTo(this.cursor === null ? (this.segments.find(({ kind }) => kind)?.start ?? 0) : this.cursor + by);
  }

  stepSegment(by) {
    const now = this.cursor ?? 0;
    const at = this.segments.findIndex(({ start, end }) => now >= start && now < end);
    const next = this.segments[Math.max(0, Math.min(this.segments.length - 1, at + (this.cursor === null ? 0 : by)))];
    if (next) this.moveTo(next.start);
  }
}
customElements.define("token-stream", TokenStream);

function tokenOf(page, at) {
  const index = at - page.start;
  let left = index;
  let version = null;
  for (const [length, value] of page.versions) {
    if (left < length) {
      version = value;
      break;
    }
    left -= length;
  }
  return { at, id: page.ids[index], piece: page.pieces[index], kind: page.kinds[index], logprob: page.logprobs[index], version };
}

function tokenElement(token) {
  const element = document.createElement("span");
  element.className = `t k${token.kind}${token.kind ? ` ${level(token.logprob)}` : ""}`;
  element.dataset.at = token.at;
  if (token.piece === "") element.append(faint("·"));
  else if (/[\n\t]/.test(token.piece)) {
    for (const part of token.piece.split(/([\n\t])/)) {
      if (part === "\n") element.append(faint("↵"), "\n");
      else if (part === "\t") element.append(faint("⇥"), "\t");
      else if (part) element.append(visible(part));
    }
  } else element.textContent = visible(token.piece);
  return element;
}

function faint(text) {
  const element = document.createElement("span");
  element.className = "x";
  element.textContent = text;
  return element;
}

function chevron() {
  const space = "http://www.w3.org/2000/svg";
  const picture = document.createElementNS(space, "svg");
  picture.setAttribute("class", "icon");
  picture.setAttribute("viewBox", "0 0 16 16");
  picture.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(space, "path");
  path.setAttribute("d", "M3.5 6 8 10.5 12.5 6");
  picture.append(path);
  return picture;
}
