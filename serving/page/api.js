// Requests to the service, with keys, and its refusals as messages.

import { held, request } from "./keys.js";

const REASONS = {
  401: "A key is needed",
  403: "Not allowed",
  404: "Not found",
  408: "Too slow",
  409: "Out of date",
  413: "Too large",
  415: "Not an image file",
  421: "Unknown host name",
  422: "Not valid",
  429: "Too busy",
  500: "The service failed",
  503: "Not ready",
};

export class Refusal extends Error {
  /** refused: the images that POST /items refused, each with its reason. */
  constructor(status, message, code, refused) {
    super(message);
    Object.assign(this, { status, code, refused });
  }
}

/** Return the JSON answer of a path relative to the page; `write` sends the write key. Throws a `Refusal`, or an AbortError after `signal`. */
export async function ask(path, { write = false, ...options } = {}) {
  const kind = write ? "write" : "read";
  for (;;) {
    const key = kind === "read" ? held("read") || held("write") : held("write");
    const answer = await send(path, options, key);
    const body = await answer.json().catch(() => null); // an answer that is not JSON is a refusal without a reason
    options.signal?.throwIfAborted();
    if (answer.ok && body !== null) return body;
    const refusal = refused(answer, body);
    const changed = key !== (kind === "read" ? held("read") || held("write") : held("write"));
    if (answer.status !== 401 || !(changed || (await request(kind, refusal.message)))) throw refusal;
    options.signal?.throwIfAborted();
  }
}

async function send(path, options, key) {
  const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
  try {
    return await fetch(`.${path}`, { ...options, headers });
  } catch (error) {
    options.signal?.throwIfAborted();
    throw new Refusal(0, "The server does not answer. Is it still running, and are you connected?");
  }
}

function refused(answer, body) {
  const said = body?.error?.message || `The server answered with status ${answer.status}.`;
  const reason = REASONS[answer.status] || "Refused";
  const wait = answer.status === 429 && Number(answer.headers.get("retry-after"));
  const then = wait ? ` Wait ${wait} s, then try again.` : "";
  const message = `${reason}: ${wait ? said.replace(/ Try again.*$/, "") : said}${then}`;
  return new Refusal(answer.status, message, body?.error?.code, body?.refused);
}
