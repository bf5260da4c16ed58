// A node's request again, as something to paste: a shell command, a Python program.

const quote = (text) => `'${text.replaceAll("'", `'"'"'`)}'`;
const PARAMETERS = ["temperature", "top_p", "max_tokens", "seed", "stop", "presence_penalty", "frequency_penalty", "n", "response_format", "logit_bias"];

// The request that led to the node's answer. Parameters that OpenAI's SDK has no name for go apart.
function requestOf(node) {
  const sampling = Object.entries(node.metadata.sampling ?? {}).filter(([, value]) => value !== null);
  return {
    body: {
      model: node.metadata.model,
      messages: node.messages.slice(0, -1),
      ...(node.tools.length ? { tools: node.tools } : {}),
      ...Object.fromEntries(sampling.filter(([name]) => PARAMETERS.includes(name))),
    },
    extra: Object.fromEntries(sampling.filter(([name]) => !PARAMETERS.includes(name))),
  };
}

export function asCurl(node, origin = location.origin) {
  const { body, extra } = requestOf(node);
  return [
    `curl ${origin}/v1/chat/completions \\`,
    `  -H 'Content-Type: application/json' \\`,
    `  -H "Authorization: Bearer $ROLLTAP_API_KEY" \\`,
    `  -d ${quote(JSON.stringify({ ...body, ...extra }, null, 2))}`,
  ].join("\n");
}

export function asPython(node, origin = location.origin) {
  const { body, extra } = requestOf(node);
  const given = Object.entries(body).map(([name, value]) => `    ${name}=${literal(value, 1)},`);
  if (Object.keys(extra).length) given.push(`    extra_body=${literal(extra, 1)},`);
  return [
    "import os",
    "",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(`${origin}/v1`)}, api_key=os.environ.get("ROLLTAP_API_KEY", "unused"))`,
    "reply = client.chat.completions.create(",
    ...given,
    ")",
    "print(reply.choices[0].message)",
    "",
  ].join("\n");
}

// A JSON value as Python writes it.
function literal(value, depth) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "string") return pythonString(value);
  if (typeof value !== "object") return String(value);
  const indent = "    ".repeat(depth + 1);
  const items = Array.isArray(value)
    ? value.map((item) => `${indent}${literal(item, depth + 1)},`)
    : Object.entries(value).map(([name, item]) => `${indent}${pythonString(name)}: ${literal(item, depth + 1)},`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return items.length ? `${open}\n${items.join("\n")}\n${"    ".repeat(depth)}${close}` : open + close;
}

// JSON's strings are Python's, but for surrogates that stand alone.
const pythonString = (text) => JSON.stringify(text).replaceAll("\u2028", "\\u2028").replaceAll("\u2029", "\\u2029").replaceAll("\u007f", "\\u007f");
