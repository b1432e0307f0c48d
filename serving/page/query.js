// The query, and its entries in the browser's history.

import { ask } from "./api.js";
import { show } from "./cards.js";
import { $, bytes, complain, tell } from "./dom.js";
import { known } from "./limits.js";

const files = new Map(); // queries with a file, by URL, because the browser's history cannot hold a file
let query = null; // {file, url, crop}, {id} or {text}

export const current = () => query;

/** Show a query, or the gallery for null, and add it to the browser's history. */
export function go(next, remember = true) {
  query = next;
  complain("");
  if (remember) history.pushState({ url: next?.url, id: next?.id, text: next?.text }, "", address(next));
  display();
  scrollTo({ top: 0 });
  tell("query", query);
}

/** Return the query of the current history entry. A file is lost when the user leaves the page. */
export function remembered() {
  const said = new URLSearchParams(location.search);
  const { url, id, text } = history.state || { id: Number(said.get("id")), text: said.get("text") };
  return files.get(url) || (id ? { id } : text ? { text } : null);
}

function address(next) {
  if (!next?.id && !next?.text) return location.pathname;
  return `?${new URLSearchParams(next.id ? { id: next.id } : { text: next.text })}`;
}

export function take(file) {
  if (!file) return;
  if (file.size === 0) return complain(`${file.name || "The image"} is empty.`);
  const most = known().max_bytes;
  if (file.size > most) {
    const name = file.name || "The image";
    return complain(`${name} has ${bytes(file.size)}; at most ${bytes(most)} are accepted.`);
  }
  const next = { file, url: URL.createObjectURL(file), crop: null };
  files.set(next.url, next);
  go(next);
}

async function display() {
  document.body.classList.toggle("asked", Boolean(query));
  $("query").hidden = $("count").hidden = !query;
  $("shuffle").hidden = Boolean(query);
  if (!query) return;
  $("query-image").removeAttribute("src");
  $("query-image").parentElement.hidden = Boolean(query.text);
  if (query.text) {
    $("query-name").textContent = query.text;
    $("query-note").textContent = "";
    return;
  }
  if (query.file) {
    describe(query.url, query.file.name || "pasted image", bytes(query.file.size));
    return;
  }
  describe(`items/${query.id}/thumbnail`, `item ${query.id}`, "");
  const wanted = query;
  const item = await ask(`/items/${wanted.id}`).catch(() => null);
  if (item && wanted === query) describe(item.thumbnail, item.label || "no label", item.source);
}

function describe(source, name, note) {
  show($("query-image"), source);
  $("query-name").textContent = name;
  $("query-note").textContent = note;
}
