// The keys that the user has typed: held until the tab is closed, and never shown again.

import { $, tell } from "./dom.js";

const PLACE = location.pathname; // the collections of a service have keys of their own
const OF = PLACE === "/" ? "" : ` ${PLACE}`;
const NAMES = { read: `zoo-read-key${OF}`, write: `zoo-write-key${OF}` };
const TITLES = { read: "This gallery needs a read key", write: "Changes need a write key" };
let pending = null; // {kind, done} of the dialog that is open

export const held = (kind) => sessionStorage.getItem(NAMES[kind]);

/** Ask for a key; whether one was given. Several askers of one kind share the dialog. */
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
  // Pictures are asked for by the browser itself, which sends no header of ours.
  if (kind === "read") document.cookie = `zoo-key=${quoted(key)}; SameSite=Strict; path=${PLACE}`;
  tell("keys");
}

/** A cookie's value may not hold every character that a key may: RFC 6265 section 4.1.1, with octal escapes. */
function quoted(key) {
  const octal = (letter) => `\\${letter.charCodeAt(0).toString(8).padStart(3, "0")}`;
  return /^[\w.~-]+$/.test(key) ? key : `"${key.replace(/[^\w.~-]/g, octal)}"`;
}
