// Numbers, times and texts as people read them.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });
const time = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

export const count = (value) => whole.format(value);
export const compact = (value) => (value < 10000 ? whole.format(value) : short.format(value));
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;
export const moment = (seconds) => (seconds ? day.format(new Date(seconds * 1000)) : "–");
export const clock = (seconds) => time.format(new Date(seconds * 1000));
export const shortId = (id) => (id.length > 18 ? id.slice(0, 8) : id);

export function reward(value) {
  if (value === null || value === undefined) return "–";
  return Number.isInteger(value) ? String(value).replace("-", "−") : value.toFixed(3).replace("-", "−");
}

export function signed(value, digits = 3) {
  return value === null || value === undefined ? "–" : value.toFixed(digits).replace("-", "−");
}

export function duration(seconds) {
  if (!(seconds >= 0)) return "–";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// A duration on an axis, where "10.0 s" would say no more than "10 s".
export const tick = (seconds) => duration(seconds).replace(/\.0+ s$/, " s");

export function ago(seconds) {
  const past = Math.max(0, Date.now() / 1000 - seconds);
  if (past < 5) return "now";
  if (past < 60) return `${Math.floor(past)} s ago`;
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 86400) return `${Math.floor(past / 3600)} h ago`;
  return `${Math.floor(past / 86400)} d ago`;
}

export function percent(logprob) {
  const value = Math.exp(logprob) * 100;
  if (value >= 99.95) return "100 %";
  if (value >= 1) return `${value.toFixed(1)} %`;
  return value >= 0.01 ? `${value.toFixed(2)} %` : "< 0.01 %";
}

const NAMES = new Map(
  Object.entries({
    0x00: "NUL", 0x07: "BEL", 0x08: "BS", 0x0d: "CR", 0x1b: "ESC", 0x7f: "DEL", 0x61c: "ALM", 0x200b: "ZWSP", 0x200e: "LRM", 0x200f: "RLM",
    0x202a: "LRE", 0x202b: "RLE", 0x202c: "PDF", 0x202d: "LRO", 0x202e: "RLO", 0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI",
    0xfeff: "BOM",
  }).map(([code, name]) => [Number(code), name]),
);
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

// A text whose control characters can be seen and do nothing: neither colour a terminal nor turn lines around.
export function visible(text) {
  return String(text).replace(CONTROLS, (character) => {
    const code = character.charCodeAt(0);
    return `⟦${NAMES.get(code) ?? `U+${code.toString(16).toUpperCase().padStart(4, "0")}`}⟧`;
  });
}

// JSON text with line breaks, where it is JSON; else as it is.
export function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
