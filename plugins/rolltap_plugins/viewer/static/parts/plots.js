// Plots. Colours come from the page, and follow its theme.

import uPlot from "../vendor/uplot/uPlot.esm.js";
import { compact, signed, tick } from "../lib/format.js";

const drawn = new WeakMap();
const all = new Set();

function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

function axis(format, size = 52) {
  return {
    stroke: () => colour("--faint"),
    font: "11px Inter, system-ui, sans-serif",
    grid: { stroke: () => colour("--line"), width: 1 },
    ticks: { show: false },
    values: format && ((_, values) => values.map(format)),
    size,
    gap: 6,
  };
}

const hours = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const seconds = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const days = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });

function timeAxis() {
  const values = (_, times, __, ___, step) => {
    const format = step >= 86400 ? days : step >= 60 ? hours : seconds;
    return times.map((at) => format.format(new Date(at * 1000)));
  };
  return { ...axis(undefined, 26), values, space: 90 };
}

// Draws into `box`, which is described by `label` for those who don't see it. Draws again when the theme or the width changes.
function draw(box, label, height, make) {
  drawn.get(box)?.stop();
  const build = () => {
    box.replaceChildren();
    const { options, data } = make();
    return new uPlot(
      { width: Math.max(200, box.clientWidth), height, legend: { show: false }, cursor: { y: false, points: { size: 6 } }, ...options },
      data,
      box,
    );
  };
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", label);
  let plot = build();
  const again = () => {
    plot.destroy();
    plot = build();
  };
  const sized = new ResizeObserver(() => plot.setSize({ width: Math.max(200, box.clientWidth), height }));
  sized.observe(box);
  const entry = { again, stop: () => (sized.disconnect(), plot.destroy(), all.delete(entry)), box };
  drawn.set(box, entry);
  all.add(entry);
}

addEventListener("themechange", () => {
  for (const entry of [...all]) entry.box.isConnected ? entry.again() : entry.stop();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("themechange")));

export function logprobPlot(box, plot, total, jump) {
  const mean = signed(plot.mean_of_all);
  draw(box, `Logprob along the sequence. Mean ${mean}.`, 220, () => ({
    data: [plot.position, plot.mean, plot.least],
    options: {
      scales: { x: { time: false, range: [0, total] } },
      axes: [axis(compact, 26), axis((value) => signed(value, value % 1 ? 1 : 0))],
      series: [
        {},
        { label: "mean", stroke: colour("--accent"), width: 1.5, points: { show: plot.slice === 1 && plot.position.length < 200, size: 4 } },
        { label: "least", stroke: "transparent", points: { show: plot.slice > 1, size: 3, fill: colour("--warn"), stroke: colour("--warn") } },
      ],
      hooks: {
        ready: [(chart) => chart.over.addEventListener("click", () => chart.cursor.idx !== null && jump(plot.position[chart.cursor.idx]))],
      },
    },
  }));
}

const bars = (fill, title) => ({ label: title, fill, stroke: fill, width: 0, paths: uPlot.paths.bars({ size: [0.7, 40], radius: 0.15 }), points: { show: false } });

// Bars that stand on each other: each series is drawn up to the sum of those from it on.
function stacked(calls, parts) {
  const x = calls.map((_, at) => at + 1);
  const sums = parts.map((_, from) => calls.map((call) => parts.slice(from).reduce((sum, [, value]) => sum + value(call), 0)));
  return [x, ...sums];
}

function stackedPlot(box, label, calls, parts, format) {
  draw(box, label, 190, () => ({
    data: stacked(calls, parts),
    options: {
      scales: { x: { time: false, range: [0.4, Math.max(calls.length, 8) + 0.6] }, y: { range: (_, low, high) => [0, high * 1.08 || 1] } },
      axes: [{ ...axis((value) => (Number.isInteger(value) ? value : ""), 26), grid: { show: false } }, axis(format, 60)],
      series: [{}, ...parts.map(([title, , name]) => bars(colour(name), title))],
    },
  }));
}

export const TOKEN_PARTS = [
  ["generated", (call) => call.usage?.generated ?? 0, "--accent"],
  ["prompt", (call) => call.usage?.prompt ?? 0, "--tint-strong"],
];
export const LATENCY_PARTS = [
  ["generation", (call) => Math.max(0, call.times.ended - (call.times.first_token ?? call.times.ended)), "--accent"],
  ["to the first token", (call) => Math.max(0, (call.times.first_token ?? call.times.ended) - call.times.sent), "--tint-strong"],
  ["waiting", (call) => Math.max(0, call.times.sent - call.times.received), "--line-strong"],
];

export const tokenPlot = (box, calls) => stackedPlot(box, "Tokens of the prompt and generated, by turn", calls, TOKEN_PARTS, compact);
export const latencyPlot = (box, calls) => stackedPlot(box, "Latency by turn", calls, LATENCY_PARTS, (value) => (value ? tick(value) : "0"));

const GROUPS = 6;

// The reward of the largest groups over time, each as a running mean; the chosen group with its single sessions.
export function rewardPlot(box, points, chosen) {
  const sizes = new Map();
  for (const [, , group] of points) sizes.set(group, (sizes.get(group) ?? 0) + 1);
  const names = chosen !== null ? [chosen] : [...sizes].sort((a, b) => b[1] - a[1]).slice(0, GROUPS).map(([name]) => name);
  const of = points.filter(([, , group]) => names.includes(group));
  const x = of.map(([at]) => at);
  const means = new Map();
  const lines = names.map((name) =>
    of.map(([, value, group]) => {
      if (group !== name) return null;
      const before = means.get(name);
      means.set(name, before === undefined ? value : before * 0.9 + value * 0.1);
      return means.get(name);
    }),
  );
  const single = of.map(([, value]) => value);
  draw(box, `Reward over time of ${names.length} groups`, 180, () => ({
    data: chosen !== null ? [x, ...lines, single] : [x, ...lines],
    options: {
      axes: [timeAxis(), axis((value) => signed(value, 2))],
      legend: { show: true, live: false },
      series: [
        {},
        ...names.map((name, at) => ({
          label: name || "no group",
          stroke: at === 0 ? colour("--accent") : `hsl(${(at * 61 + 20) % 360} 45% 55%)`,
          width: at === 0 ? 2 : 1.25,
          spanGaps: true,
          points: { show: false },
        })),
        ...(chosen !== null ? [{ label: "one session", stroke: "transparent", points: { show: true, size: 3, fill: colour("--line-strong"), stroke: colour("--line-strong") } }] : []),
      ],
    },
  }));
}
