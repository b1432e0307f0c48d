// Results marked right, of the query's class, or wrong: with a write key, and not where a text was searched by.

import { ask } from "./api.js";
import { $, button, complain, listen } from "./dom.js";
import { held } from "./keys.js";
import { current } from "./query.js";

const sent = new WeakMap(); // of a query with a file: from each crop to what POST /feedback takes of it
let marks = new Map(); // of the query that is shown: from a result's id to its mark

const may = () => Boolean(held("write") && (current()?.id || current()?.file));

const cropOf = (query) => query.crop?.join(",") ?? "";
const known = (query) => query.id || sent.get(query)?.get(cropOf(query));

/** The query as a mark names it; an image that was sent is embedded once more for it. */
async function named(query) {
  if (known(query)) return known(query);
  const crop = cropOf(query);
  const body = new FormData();
  body.append("image", query.file, "image");
  const told = await ask(`/embed?${new URLSearchParams({ format: "base64", ...(crop && { crop }) })}`, { method: "POST", body });
  const source = (query.file.name || "").replace(/\p{Z}/gu, " ").replace(/\p{C}/gu, "").slice(0, 200);
  const said = { content_sha256: told.content_sha256[0], embedding: told.embeddings[0], fingerprint: told.fingerprint, source };
  sent.set(query, (sent.get(query) || new Map()).set(crop, said));
  return said;
}

/** The marks that the query has already; of an image that was sent they are known once one of its results is marked. */
async function load() {
  const query = current();
  marks = new Map();
  document.body.classList.toggle("may-mark", may());
  if (!may()) return;
  const said = known(query);
  if (!said) return draw();
  try {
    const page = await ask(`/feedback?query=${said.content_sha256 || said}&limit=200`);
    if (query === current()) marks = new Map(page.marks.map((mark) => [mark.result.id, mark]));
  } catch (error) {
    complain(error.message);
  }
  draw();
}

async function put(query, item, verdict) {
  const body = JSON.stringify({ query: await named(query), item, verdict });
  return ask("/feedback", { method: "POST", body, headers: { "Content-Type": "application/json" }, write: true });
}

/** Give a result this verdict; null takes its mark back. */
async function give(item, verdict) {
  const query = current();
  const before = marks.get(item.id);
  try {
    if (verdict) {
      const mark = await put(query, item.id, verdict).catch((error) => {
        if (error.status !== 409 || !sent.delete(query)) throw error;
        return put(query, item.id, verdict); // the gallery has another model since the image was embedded
      });
      if (query === current()) marks.set(item.id, mark);
    } else if (before) {
      await ask(`/feedback/${before.id}`, { method: "DELETE", write: true });
      marks.delete(item.id);
    }
  } catch (error) {
    return complain(error.message);
  }
  complain("");
  draw();
  say(item, verdict, before?.verdict || null);
}

function say(item, verdict, before) {
  const name = item.label || item.source;
  const undo = button("quiet", "Undo", () => {
    find(item.id, before || verdict)?.focus(); // the button that is pressed goes away
    give(item, before);
  });
  undo.setAttribute("aria-label", `Undo the mark of ${name}`);
  $("note").replaceChildren(verdict ? `Marked ${name}, item ${item.id}, ${verdict}. ` : `${name}, item ${item.id}, is not marked now. `, undo);
}

const find = (id, verdict) => $("grid").querySelector(`.mark[data-item="${id}"][data-verdict="${verdict}"]`);

function draw() {
  for (const one of $("grid").querySelectorAll(".mark")) {
    one.setAttribute("aria-pressed", marks.get(Number(one.dataset.item))?.verdict === one.dataset.verdict);
  }
}

listen("mark", ({ item, verdict }) => give(item, marks.get(item.id)?.verdict === verdict ? null : verdict));
listen("found", load);
listen("edited", draw);
listen("keys", load);
