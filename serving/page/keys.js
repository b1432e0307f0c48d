// The keys that the user typed. The tab keeps them until it is closed, and never shows them.

import { $, tell } from "./dom.js";

const PLACE = location.pathname; // each collection of a service has its own keys
const OF = PLACE === "/" ? "" : ` ${PLACE}`;
const NAMES = { read: `zoo-read-key${OF}`, write: `zoo-write-key${OF}` };
const TITLES = { read: "This gallery needs a read key", write: "Changes need a write key" };
let pending = null; // {kind, done} of the open dialog

export const held = (kind) => sessionStorage.getItem(NAMES[kind]);

/** Ask for a key; return whether one was given. Requests of one kind share the dialog. */
export async function request(kind, reason) {
  while (pending && pending.kind !== kind) await pending.done;
  pending ||= { kind, done: dialog(kind, reason).finally(() => (pending = null)) };
  return pending.done;
}

export function forget(kind) {
  sessionStorage.removeItem(NAMES[kind]);
  if (kind === "read") document.cookie = `zoo-key=; SameSite=Strict; path=${PLACE}; max-age=0`;
  tell("keys");
}

function dialog(kind, reason) {
  const shown = $("key-dialog");
  $("key-title").textContent = TITLES[kind];
  $("key-reason").textContent = reason;
  $("key").value = "";
  shown.returnValue = "";
  shown.showModal();
  return new Promise((done) => {
    const closed = () => {
      const given = shown.returnValue === "use";
      if (given) keep(kind, $("key").value.trim());
      $("key").value = "";
      done(given);
    };
    shown.addEventListener("close", closed, { once: true });
  });
}

function keep(kind, key) {
  sessionStorage.setItem(NAMES[kind], key);
  // The browser requests pictures itself, without our headers, so the key is also a cookie.
  if (kind === "read") document.cookie = `zoo-key=${quoted(key)}; SameSite=Strict; path=${PLACE}`;
  tell("keys");
}

/** Escape the characters that a cookie's value cannot hold (RFC 6265, section 4.1.1) as octal numbers. */
function quoted(key) {
  const octal = (letter) => `\\${letter.charCodeAt(0).toString(8).padStart(3, "0")}`;
  return /^[\w.~-]+$/.test(key) ? key : `"${key.replace(/[^\w.~-]/g, octal)}"`;
}
