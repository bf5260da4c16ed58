// Numbers, times and texts as people read them.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

export const count = (value) => whole.format(value);
export const compact = (value) => (value < 10000 ? whole.format(value) : short.format(value));
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;
export const moment = (seconds) => (seconds ? day.format(new Date(seconds * 1000)) : "–");
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

const DIRECTIONS = new Map([
  ["\u061c", "ALM"], ["\u200e", "LRM"], ["\u200f", "RLM"], ["\u202a", "LRE"], ["\u202b", "RLE"], ["\u202c", "PDF"],
  ["\u202d", "LRO"], ["\u202e", "RLO"], ["\u2066", "LRI"], ["\u2067", "RLI"], ["\u2068", "FSI"], ["\u2069", "PDI"],
  ["\u200b", "ZWSP"], ["\ufeff", "BOM"],
]);

// A text whose control characters can be seen and do nothing: neither colour a terminal nor turn lines around.
export function visible(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g, (character) => {
    const name = DIRECTIONS.get(character);
    if (name) return `⟦${name}⟧`;
    return character === "\u007f" ? "\u2421" : String.fromCharCode(0x2400 + character.charCodeAt(0));
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
