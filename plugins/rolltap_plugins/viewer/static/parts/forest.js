// The forest as a picture: one row a completion in the order of the calls, lines from each to what it goes on from.

import { html, nothing, svg } from "../vendor/lit-html/lit-html.js";
import { count, duration, reward, visible } from "../lib/format.js";
import { icon } from "../lib/ui.js";

const ROW = 56;
const LANE = 16;
const MOST_LANES = 9;

// Which lane each node stands in. A node's first child goes on in its lane; others, and new trees, take a free one.
export function layout(nodes) {
  const at = new Map(nodes.map((node, index) => [node.id, index]));
  const lastUse = new Array(nodes.length).fill(-1);
  nodes.forEach((node, index) => {
    if (at.has(node.parent_id)) lastUse[at.get(node.parent_id)] = index;
  });
  const busy = []; // for each lane: the row until which a line runs in it
  const lanes = [];
  const continued = new Set();
  nodes.forEach((node, index) => {
    const parent = at.get(node.parent_id);
    let lane;
    if (parent !== undefined && !continued.has(parent)) {
      continued.add(parent);
      lane = lanes[parent];
    } else {
      lane = busy.findIndex((until) => until < (parent ?? index));
      if (lane < 0) lane = busy.length;
    }
    lanes[index] = lane;
    busy[lane] = Math.max(index, lastUse[index], busy[lane] ?? -1);
  });
  return { at, lanes, width: Math.min(MOST_LANES, Math.max(1, ...lanes.map((lane) => lane + 1))) };
}

export function ancestors(nodes, at, id) {
  const found = new Set();
  for (let index = at.get(id); index !== undefined; index = at.get(nodes[index].parent_id)) found.add(index);
  return found;
}

const x = (lane) => 8 + Math.min(lane, MOST_LANES - 1) * LANE;
const y = (index) => index * ROW + ROW / 2;

function line(from, to, fromLane, toLane) {
  const [x1, y1, x2, y2] = [x(fromLane), y(from), x(toLane), y(to)];
  if (x1 === x2) return `M${x1} ${y1}V${y2}`;
  const bend = y1 + ROW * 0.8;
  return `M${x1} ${y1}C${x1} ${y1 + ROW * 0.5} ${x2} ${y1 + ROW * 0.3} ${x2} ${bend}V${y2}`;
}

function picture(nodes, { at, lanes, width }, path, chosen) {
  const edges = nodes.map((node, index) => ({ from: at.get(node.parent_id), to: index })).filter(({ from }) => from !== undefined);
  edges.sort((a, b) => Number(path.has(a.to)) - Number(path.has(b.to))); // the chosen path over the others
  return html`<svg class="lanes" width=${width * LANE} height=${nodes.length * ROW} aria-hidden="true">
    ${edges.map(({ from, to }) => svg`<path class=${path.has(to) ? "on" : ""} d=${line(from, to, lanes[from], lanes[to])} />`)}
    ${nodes.map((node, index) => {
      const classes = [path.has(index) && "on", node.leaf && "leaf", node.trainable === false && "untrainable", node.id === chosen && "chosen"];
      return svg`<circle class=${classes.filter(Boolean).join(" ")} cx=${x(lanes[index])} cy=${y(index)} r=${node.id === chosen ? 5.5 : 4.25} />`;
    })}
  </svg>`;
}

// Each call's number, from 1; the choices of one call share it.
export function callNumbers(nodes) {
  const numbers = new Map();
  for (const node of nodes) if (!numbers.has(node.call_id)) numbers.set(node.call_id, numbers.size + 1);
  return numbers;
}

export function forest(nodes, chosen, marked, choose, open) {
  const placed = layout(nodes);
  const path = ancestors(nodes, placed.at, chosen);
  const numbers = callNumbers(nodes);
  const left = `padding-left:calc(var(--gutter) + ${placed.width * LANE + 4}px)`;
  return html`<ol class="forest" aria-label="Completions in the order of the calls">
    ${picture(nodes, placed, path, chosen)}
    ${nodes.map((node, index) => row(node, index, nodes[placed.at.get(node.parent_id)], { number: numbers.get(node.call_id), chosen, marked, choose, open, left }))}
  </ol>`;
}

function row(node, index, parent, { number, chosen, marked, choose, open, left }) {
  const took = node.times ? node.times.ended - node.times.received : null;
  const isRoot = !parent;
  return html`<li>
    <button class="call" data-node=${node.id} .style=${left} aria-current=${node.id === chosen ? "true" : "false"}
      @click=${() => choose(node.id)} @dblclick=${() => open(node.id)}>
      <span class="first">
        <span class="place" title="The number of the call">${number}</span>
        ${node.calls.slice(0, 2).map((name) => html`<span class="toolname">${visible(name)}</span>`)}
        ${node.calls.length > 2 ? html`<span class="toolname">+${node.calls.length - 2}</span>` : nothing}
        ${node.said ? html`<bdi class="words">${visible(node.said)}</bdi>` : node.calls.length ? nothing : html`<span class="words none">no text</span>`}
      </span>
      <span class="second">
        ${isRoot || node.lineage !== parent.lineage ? (node.lineage ? html`<span class="mark accent">${visible(node.lineage)}</span>` : isRoot && index ? html`<span class="mark">new tree</span>` : nothing) : nothing}
        ${node.choice !== undefined ? html`<span>choice ${node.choice + 1}</span>` : nothing}
        <span>${count(node.num_generated ?? 0)} tok</span>
        ${took === null ? nothing : html`<span>${duration(took)}</span>`}
        ${node.leaf && node.reward !== undefined ? html`<span>reward ${reward(node.reward)}</span>` : nothing}
        ${node.trainable === false ? html`<span class="mark warn" title=${node.untrainable_reason ?? ""}>untrainable</span>` : nothing}
        ${node.delivery === "aborted" ? html`<span class="mark bad">aborted</span>` : nothing}
        ${node.id === marked ? html`<span class="mark accent">to compare</span>` : nothing}
        ${node.branch_reason ? html`<span class="reason" title=${visible(node.branch_reason)}>${icon("branch")}${visible(node.branch_reason)}</span>` : nothing}
      </span>
    </button>
  </li>`;
}
