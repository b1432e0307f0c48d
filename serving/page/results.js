// The grid of results: neighbours of the query, or items of the gallery.

import { ask } from "./api.js";
import { card } from "./cards.js";
import { $, complain, counted, tell } from "./dom.js";
import { chosenLabels, fill, isFiltering } from "./filters.js";
import { learned } from "./limits.js";
import { where } from "./metadata.js";

const SAMPLE = 24;
let running = null; // the AbortController of the current request
let more = null; // fetches the next page
let uncalibrated = false; // whether the shown results lack p_same

/** Search with the query ({file, crop}, {id} or {text}); null shows the gallery. */
export function present(query) {
  return fetching(async (get) => {
    if (query) await search(query, get, 0);
    else if (chosenLabels().length || where()) await browseChosen(get, 0);
    else await browse(get);
  });
}

/** Show the given items. */
export function presentItems(title, note, items) {
  running?.abort();
  put(items, 0, null);
  heading(title, note);
}

async function browse(get) {
  const { items, total } = await get(`/items?sample=${SAMPLE}`);
  put(items, 0, null);
  heading("From the gallery", total ? "Click one to search from it" : "The gallery is empty");
}

async function browseChosen(get, offset) {
  const wanted = { offset, limit: SAMPLE, ...(where() && { where: where() }) };
  const labels = chosenLabels().map((label) => ({ label }));
  const page = (label) => get(`/items?${new URLSearchParams({ ...label, ...wanted })}`);
  const pages = await Promise.all((labels.length ? labels : [{}]).map(page));
  const left = pages.some(({ total }) => total > offset + SAMPLE);
  put(pages.flatMap(({ items }) => items), offset, left && ((next) => browseChosen(next, offset + SAMPLE)));
  const total = pages.reduce((sum, one) => sum + one.total, 0);
  const of = labels.length ? ` of ${counted(pages.length, "label")}` : "";
  heading("From the gallery", `${counted(total, "image")}${of}${where() ? " with this metadata" : ""}`);
}

async function search(query, get, offset) {
  await learned();
  const k = Number($("k").value);
  const parameters = new URLSearchParams({ k });
  if (offset) parameters.set("offset", offset);
  if (query.id) parameters.set("id", query.id);
  if (query.crop) parameters.set("crop", query.crop.join(","));
  const unsure = fill(parameters, Boolean(query.text));
  const { results, milliseconds, query: said, ordered_by: order } = await get(`/search?${parameters}`, { method: "POST", ...sent(query) });
  put(results, offset, results.length === k && ((next) => search(query, next, offset + k)));
  const many = offset + results.length;
  uncalibrated = many > 0 && !query.text && (offset ? uncalibrated : results[0].p_same === null);
  const found = many || !isFiltering() ? `${counted(many, "image")}, best first` : "No image matches the filters";
  const notes = [
    uncalibrated && "Similarities are not calibrated (see Model)",
    unsure && "The least probability was ignored, because texts have no p_same",
    parameters.has("rerank") && `Ordered by ${order}`,
    said.truncated && "The text is too long for the model; its end was left out",
  ].filter(Boolean);
  heading("Nearest", `${found}, in ${milliseconds.toFixed(0)} ms${notes.map((one) => `. ${one}`).join("")}`);
}

/** Return the body of the request. */
function sent({ file, text }) {
  if (text) return { body: JSON.stringify({ text }), headers: { "Content-Type": "application/json" } };
  const body = file && new FormData();
  body?.append("image", file, "image");
  return { body };
}

/** Run `work` with a `get` that is cancelled by the next request. */
async function fetching(work) {
  running?.abort();
  const mine = (running = new AbortController());
  $("found").setAttribute("aria-busy", "true");
  const get = async (path, options) => {
    const answer = await ask(path, { ...options, signal: mine.signal });
    complain("");
    return answer;
  };
  try {
    await work(get);
  } catch (error) {
    if (mine.signal.aborted) return; // a newer request replaced this one
    complain(error.message);
    heading("Nothing found", "");
    put([], 0, null);
  }
  $("found").setAttribute("aria-busy", "false");
}

function put(items, offset, next) {
  const cards = items.map(card);
  if (offset) $("grid").append(...cards);
  else $("grid").replaceChildren(...cards);
  more = next || null;
  if (offset) cards[0]?.firstChild.focus();
  $("more").hidden = !more;
  tell("found", [...$("grid").querySelectorAll(".card")].map((one) => Number(one.dataset.id)));
}

function heading(title, note) {
  $("results-title").textContent = title;
  $("note").textContent = note;
}

$("more").addEventListener("click", () => more && fetching(more));
