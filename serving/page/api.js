// Requests to the service: with the user's keys, within its limits, and with its refusals as messages.

import { $, answer, tell } from "./dom.js";

const REASONS = {
  key_taken: "Key taken",
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

  /** Whether the same request may succeed later. */
  get passes() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

/** Return the JSON answer of a path relative to the page; `write` sends the write key. Throws a `Refusal`, or an AbortError after `signal`. */
export async function ask(path, { write = false, ...options } = {}) {
  const kind = write ? "write" : "read";
  const keyNow = () => (write ? held("write") : held("read") || held("write"));
  for (;;) {
    const key = keyNow();
    const response = await send(path, options, key);
    const body = await response.json().catch(() => null); // an answer that is not JSON is a refusal without a reason
    options.signal?.throwIfAborted();
    if (response.ok && body !== null) return body;
    const refusal = refused(response, body);
    if (response.status !== 401 || !(key !== keyNow() || (await request(kind, refusal.message)))) throw refusal;
    options.signal?.throwIfAborted();
  }
}

/** Return the options of a request that sends a value as JSON. */
export function json(method, value, options) {
  return { method, body: JSON.stringify(value), headers: { "Content-Type": "application/json" }, ...options };
}

async function send(path, options, key) {
  const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
  try {
    return await fetch(`.${path}`, { ...options, headers });
  } catch (error) {
    options.signal?.throwIfAborted();
    throw new Refusal(0, "The server does not answer. Check that it is running and that you are connected.");
  }
}

function refused(response, body) {
  const said = body?.error?.message || `The server answered with status ${response.status}.`;
  const reason = REASONS[body?.error?.code] || REASONS[response.status] || "Refused";
  const wait = response.status === 429 && Number(response.headers.get("retry-after"));
  const then = wait ? ` Wait ${wait} s, then try again.` : "";
  const message = `${reason}: ${wait ? said.replace(/ Try again.*$/, "") : said}${then}`;
  return new Refusal(response.status, message, body?.error?.code, body?.refused);
}

// Keys: the tab keeps them until it is closed, and never shows them.

const PLACE = location.pathname; // each collection of a service has its own keys
const OF = PLACE === "/" ? "" : ` ${PLACE}`;
const NAMES = { read: `zoo-read-key${OF}`, write: `zoo-write-key${OF}` };
const TITLES = { read: "This gallery needs a read key", write: "Changes need a write key" };
let pending = null; // {kind, done} of the open dialog

export const held = (kind) => sessionStorage.getItem(NAMES[kind]);

/** Ask for a key; return whether one was given. Requests of one kind share the dialog. */
export async function request(kind, reason) {
  while (pending && pending.kind !== kind) await pending.done;
  pending ||= { kind, done: askForKey(kind, reason).finally(() => (pending = null)) };
  return pending.done;
}

export function forget(kind) {
  sessionStorage.removeItem(NAMES[kind]);
  if (kind === "read") document.cookie = `zoo-key=; SameSite=Strict; path=${PLACE}; max-age=0`;
  tell("keys");
}

async function askForKey(kind, reason) {
  $("key-title").textContent = TITLES[kind];
  $("key-reason").textContent = reason;
  $("key").value = "";
  const given = (await answer($("key-dialog"))) === "use";
  if (given) keep(kind, $("key").value.trim());
  $("key").value = "";
  return given;
}

function keep(kind, key) {
  sessionStorage.setItem(NAMES[kind], key);
  // The browser requests pictures itself, without our headers, so the key is also a cookie.
  if (kind === "read") document.cookie = `zoo-key=${quoted(key)}; SameSite=Strict; path=${PLACE}`;
  tell("keys");
}

/** Give the read key of this page to that of a collection, instead of this one. */
export function carry(place) {
  const key = held("read");
  if (!key) return;
  forget("read");
  sessionStorage.setItem(`zoo-read-key ${place}`, key);
  document.cookie = `zoo-key=${quoted(key)}; SameSite=Strict; path=${place}`;
}

/** Escape the characters that a cookie's value cannot hold (RFC 6265, section 4.1.1) as octal numbers. */
function quoted(key) {
  const octal = (letter) => `\\${letter.charCodeAt(0).toString(8).padStart(3, "0")}`;
  return /^[\w.~-]+$/.test(key) ? key : `"${key.replace(/[^\w.~-]/g, octal)}"`;
}

// Limits: bytes and pixels per image, images and bytes per request, results per search.

const UNKNOWN = { max_bytes: Infinity, max_pixels: Infinity, max_images: Infinity, max_body: Infinity, max_k: Infinity };
let limits = null; // null until the service reported them

/** Return the limits, or infinite ones if they are unknown yet. */
export const known = () => limits || UNKNOWN;

/** Return the answer of GET /model, and remember its limits. */
export async function askModel() {
  const model = await ask("/model");
  limits = { ...UNKNOWN, ...model.limits };
  tell("limits", limits);
  return model;
}

/** Wait until the limits are known. An address with a query starts a search as soon as the page is loaded. */
export async function learned() {
  if (!limits) await askModel();
}
