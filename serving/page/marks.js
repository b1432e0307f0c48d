// Marks of results as right (of the query's class) or wrong. They need a write key and a query that is not a text.

import { ask } from "./api.js";
import { $, button, complain, listen } from "./dom.js";
import { held } from "./keys.js";
import { current } from "./query.js";

const sent = new WeakMap(); // from a query with a file to a map from each crop to its form for POST /feedback
let marks = new Map(); // from a result's id to its mark, for the current query

const may = () => Boolean(held("write") && (current()?.id || current()?.file));

const cropOf = (query) => query.crop?.join(",") ?? "";
const known = (query) => query.id || sent.get(query)?.get(cropOf(query));

/** Return the query in the form that a mark needs. A sent image is embedded once more. */
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

/** Load the query's marks. Those of a sent image are known only after one of its results was marked. */
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

/** Mark a result with this verdict; null removes its mark. */
async function give(item, verdict) {
  const query = current();
  const before = marks.get(item.id);
  try {
    if (verdict) {
      const mark = await put(query, item.id, verdict).catch((error) => {
        if (error.status !== 409 || !sent.delete(query)) throw error;
        return put(query, item.id, verdict); // the gallery's model changed after the image was embedded
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
    find(item.id, before || verdict)?.focus(); // the pressed button disappears
    give(item, before);
  });
  undo.setAttribute("aria-label", `Undo the mark of ${name}`);
  $("note").replaceChildren(verdict ? `Marked ${name}, item ${item.id}, ${verdict}. ` : `${name}, item ${item.id}, is no longer marked. `, undo);
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
