// The results: neighbours of the query or items of the gallery, as cards, and the enlarged view of one of them.

import { ask, json, learned } from "./api.js";
import { $, breakable, button, complain, counted, drawn, element, listen, nameOf, parts, percent, show, tell, words } from "./dom.js";
import { chosenLabels, clearFilters, fill, isFiltering, only, where } from "./query.js";

const SAMPLE = 24;
let running = null; // the AbortController of the current request
let more = null; // fetches the next page
let uncalibrated = false; // whether the shown results lack p_same
let shown = []; // the items of the cards

/** Search with the query {parts}; null shows the gallery. */
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
  heading("From the gallery", total ? "Choose one to search with it" : "The gallery is empty");
  if (!total) explainNothing("Add images with “Add” above, or on the server: zoo index MODEL FOLDER --out GALLERY");
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
  if (!total) explainNothing("No image has all of these values.", true);
}

async function search(query, get, offset) {
  await learned();
  const k = Number($("k").value);
  const parameters = new URLSearchParams({ k });
  if (offset) parameters.set("offset", offset);
  const isPicture = Boolean(only(query) && !only(query).text);
  const unsure = fill(parameters, isPicture);
  const { results, milliseconds, query: said, ordered_by: order } = await get(`/search?${parameters}`, { method: "POST", ...body(query.parts) });
  put(results, offset, results.length === k && ((next) => search(query, next, offset + k)));
  const many = offset + results.length;
  uncalibrated = many > 0 && isPicture && (offset ? uncalibrated : results[0].p_same === null);
  const found = many || !isFiltering() ? `${counted(many, "image")}, best first` : "No image matches the filters";
  const notes = [
    uncalibrated && "Similarities are not calibrated (see Model)",
    unsure && "The least probability was ignored, because only pictures have a p_same",
    parameters.has("rerank") && `Ordered by ${order}`,
    said.parts.some(({ truncated }) => truncated) && "A text is too long for the model; its end was left out",
  ].filter(Boolean);
  heading("Nearest", `${found}, in ${milliseconds.toFixed(0)} ms${notes.map((one) => `. ${one}`).join("")}`);
  if (!many) explainNothing(isFiltering() ? "Remove a filter, or lower the least similarity." : "The gallery has no other image.", isFiltering());
}

/** Return the body of the request: the parts of the query as JSON, or a form of it and the images. */
function body(parts) {
  const images = parts.filter(({ file }) => file);
  const query = parts.map(({ file, url, id, text, crop, weight }) => (file ? { image: images.findIndex((one) => one.url === url), crop, weight } : { id, text, weight }));
  if (!images.length) return json("POST", { query });
  const form = new FormData();
  for (const { file } of images) form.append("image", file, "image");
  form.append("query", JSON.stringify(query));
  return { body: form };
}

/** Show the items that are copies of an item's picture. */
async function showCopies(id, get) {
  const { duplicates, without_hash: left } = await get(`/items/${id}/duplicates`);
  put(duplicates.map(copied), 0, null);
  const unhashed = left ? `. ${counted(left, "item")} without a picture cannot be compared` : "";
  heading(`Copies of item ${id}`, `${counted(duplicates.length, "copy", "copies")}${unhashed}`);
  if (!duplicates.length) explainNothing("No other image of the gallery shows this picture.");
  $("results-title").focus(); // the button that was pressed has disappeared, or is far above
}

/** Return a copy as an item of the grid, which says why it is one. */
function copied({ similarity, distance, mirrored, part, width, height, ...item }) {
  const size = width ? `${width} × ${height}` : "size unknown";
  const kind = [mirrored && "mirrored", part && "in part"].filter(Boolean).join(", ");
  const why = `${kind ? `${kind}; ` : ""}cosine ${similarity.toFixed(2)}, ${distance} of 256 bits differ`;
  return { ...item, copy: `${size}; ${why}` };
}

listen("copies", (id) => fetching((get) => showCopies(id, get)));

/** Run `work` with a `get` that is cancelled by the next request. */
async function fetching(work) {
  running?.abort();
  const mine = (running = new AbortController());
  complain("");
  $("found").setAttribute("aria-busy", "true");
  if (!$("grid").childElementCount) $("grid").replaceChildren(...Array.from({ length: SAMPLE / 2 }, skeleton));
  const get = (path, options) => ask(path, { ...options, signal: mine.signal });
  try {
    await work(get);
  } catch (error) {
    if (mine.signal.aborted) return; // a newer request replaced this one
    complain(error.message, error.passes && (() => fetching(work)));
    heading("Nothing found", "");
    put([], 0, null);
  }
  $("found").setAttribute("aria-busy", "false");
}

function put(items, offset, next) {
  const cards = items.map(card);
  $("nothing").hidden = true;
  if (offset) $("grid").append(...cards);
  else $("grid").replaceChildren(...cards);
  const unlikely = items.findIndex(({ likely }) => likely === false);
  if (unlikely >= 0 && !(offset && shown.at(-1)?.likely === false)) cards[unlikely].before(lineOfRelevance(offset + unlikely));
  shown = offset ? [...shown, ...items] : items;
  more = next || null;
  if (offset) cards[0]?.firstChild.focus();
  $("more").hidden = !more;
  tell("found", shown.map(({ id }) => id));
}

/** Return the line below the results that are likely to show what the query shows. */
function lineOfRelevance(likely) {
  const line = element("li", "relevance", likely ? "Nothing more is likely to show what you searched for" : "Nothing here is likely to show what you searched for");
  line.title = "By how far the similarities stand out from those to the rest of the gallery";
  return line;
}

function heading(title, note) {
  $("results-title").textContent = title;
  $("note").textContent = note;
}

/** Explain in place of the cards what to do if the search found no items. */
function explainNothing(text, filtered = false) {
  $("nothing").replaceChildren(element("p", "", text), ...(filtered ? [button("small", "Clear the filters", clearFilters)] : []));
  $("nothing").hidden = false;
}

$("more").addEventListener("click", () => more && fetching(more));
listen("limits", ({ max_k: most }) => {
  const counts = [...$("k").options].map(({ value }) => Number(value));
  if (Math.max(...counts) <= most) return;
  const chosen = Math.min(Number($("k").value), most);
  const allowed = new Set(counts.map((count) => Math.min(count, most)));
  $("k").replaceChildren(...[...allowed].map((count) => element("option", "", count)));
  $("k").value = chosen;
});

// Cards: picture, label and similarity of an item.

function skeleton() {
  const place = element("li", "skeleton", element("div", "frame"), element("div", "line"));
  place.setAttribute("aria-hidden", "true");
  return place;
}

function card(item) {
  let spoken = nameOf(item);
  const text = element("div", "words", named(item.label));
  if (item.key) {
    text.append(element("div", "own-key", `Key ${item.key}`));
    spoken += `, key ${item.key}`;
  }
  if (item.similarity !== undefined) {
    text.append(likeness(item));
    spoken += `, similarity ${item.similarity.toFixed(3)}`;
  }
  if (item.copy) text.append(element("div", "chance", item.copy));
  if (item.also?.length) {
    text.append(element("div", "chance", `Also at ${item.also.length === 1 ? placeName(item.also[0]) : counted(item.also.length, "other place")}`));
    spoken += `, also at ${counted(item.also.length, "other place")}`;
  }
  if (typeof item.p_same === "number") spoken += `, ${percent(item.p_same)} likely the same class`;
  const made = button("card", "", () => tell("ask", { id: item.id }));
  made.dataset.id = item.id;
  made.title = [item.label, item.source, item.key && `Key ${item.key}`].filter(Boolean).join("\n");
  made.setAttribute("aria-label", `${spoken}. Search from this image`);
  made.replaceChildren(picture(item.thumbnail), text);
  const tools = [
    tool("enlarge", "Enlarge", item, () => enlarge(item.id)),
    tool("more-like", "More like", item, () => tell("add", { id: item.id })),
    tool("less-like", "Less like", item, () => tell("add", { id: item.id, weight: -1 })),
    tool("edit", "Edit", item, () => tell("edit", item)),
    tool("remove", "Delete", item, () => tell("delete", item)),
  ];
  ["M14 4h6v6M10 20H4v-6M20 4l-7 7M4 20l7-7", "M12 5v14M5 12h14", "M5 12h14"].forEach((path, i) => tools[i].replaceChildren(icon(path)));
  return element("li", "", made, ...tools);
}

/** Return the name of another item with the same image: its key, or else its file. */
const placeName = ({ key, source }) => (key ? `key ${key}` : source);

const placeOf = (id) => $("grid").querySelector(`.card[data-id="${id}"]`)?.parentElement;

/** Replace the card of an item after a change; return its new place, if it is shown. */
export function redraw(item) {
  const old = placeOf(item.id);
  if (!old) return null;
  const changed = card(item);
  old.replaceWith(changed);
  shown = shown.map((one) => (one.id === item.id ? item : one));
  return changed;
}

/** Remove the card of a deleted item; return the card after it, or the one before it. */
export function takeAway(id) {
  const place = placeOf(id);
  const next = [place?.nextElementSibling, place?.previousElementSibling].find((other) => other && !other.matches(".relevance"));
  place?.remove();
  shown = shown.filter((item) => item.id !== id);
  return next?.firstChild;
}

function icon(path) {
  return drawn("svg", { viewBox: "0 0 24 24", width: 16, height: 16, "aria-hidden": "true", class: "icon" }, drawn("path", { d: path }));
}

function tool(name, text, item, act) {
  const made = button(`tool ${name}`, text, act);
  made.setAttribute("aria-label", `${text} ${nameOf(item)}, item ${item.id}`);
  made.title = text;
  return made;
}

/** Show a label; for one with folders, such as Greek/alpha, emphasise the last part. */
function named(label) {
  if (!label) return element("span", "label none", "no label");
  const folders = parts(label);
  const name = element("span", "label", folders.pop());
  return folders.length ? element("div", "nested", element("span", "folder", folders.join(" / ")), name) : name;
}

function picture(source) {
  const image = element("img");
  image.alt = "";
  image.loading = "lazy";
  const frame = element("div", "frame", image);
  show(image, source);
  return frame;
}

function likeness({ similarity, p_same: chance }) {
  const part = element("span", "fill");
  part.style.width = `${Math.max(0, similarity) * 100}%`;
  const row = element("div", "likeness", element("span", "track", part), element("span", "", similarity.toFixed(3)));
  if (typeof chance !== "number") return row;
  const said = element("div", "chance", `${percent(chance)} same class`);
  said.title = "The probability that it has the query's class (p_same): the share among results whose similarity is as far above the query's background; 1 for the identical image";
  return element("div", "both", row, said);
}

// The enlarged view: one of the shown items, with the previous and the next one.

let here = -1; // position in `shown`

function enlarge(id) {
  view(shown.findIndex((item) => item.id === id));
  $("viewer").showModal();
  $("viewer").scrollTop = 0; // on small screens the button with the focus is below the picture
}

function view(next) {
  if (!shown[next]) return;
  here = next;
  const item = shown[here];
  $("viewer-place").textContent = `${here + 1} of ${shown.length}`;
  $("viewer-title").textContent = nameOf(item);
  $("viewer-image").alt = nameOf(item);
  show($("viewer-image"), item.thumbnail);
  $("viewer-previous").disabled = here === 0;
  $("viewer-next").disabled = here === shown.length - 1;
  describe(item);
  if (!item.metadata) {
    // A result of a search comes without its metadata.
    ask(`/items/${item.id}`).then(({ metadata }) => shown[here] === item && describe({ ...item, metadata }), () => null);
  }
}

function describe({ id, key, label, source, similarity, p_same: chance, copy, also, metadata }) {
  const rows = {
    Copy: copy,
    Similarity: similarity?.toFixed(3),
    "Same class": typeof chance === "number" ? percent(chance) : undefined,
    ...metadata,
    Label: label ?? "none",
    File: source,
    ...(key && { Key: key }),
    Item: id,
    "Also at": also?.length ? also.map(placeName).join(", ") : undefined,
  };
  const known = Object.entries(rows).filter(([, value]) => value !== undefined && value !== null);
  $("viewer-facts").replaceChildren(...known.flatMap(([name, value]) => [element("dt", "", words(name)), element("dd", "", ...breakable(`${value}`))]));
}

const MOVES = { ArrowLeft: () => here - 1, ArrowRight: () => here + 1, Home: () => 0, End: () => shown.length - 1 };

$("viewer").addEventListener("keydown", (event) => {
  if (!MOVES[event.key]) return;
  event.preventDefault();
  view(MOVES[event.key]());
});
$("viewer").addEventListener("click", (event) => event.target === $("viewer") && $("viewer").close()); // outside the dialog
$("viewer").addEventListener("close", () => placeOf(shown[here]?.id)?.querySelector(".enlarge").focus());
$("viewer-previous").addEventListener("click", () => view(here - 1));
$("viewer-next").addEventListener("click", () => view(here + 1));
$("viewer-close").addEventListener("click", () => $("viewer").close());
$("viewer-copies").addEventListener("click", () => {
  $("viewer").close();
  tell("copies", shown[here].id);
});
$("viewer-search").addEventListener("click", () => {
  $("viewer").close();
  tell("ask", { id: shown[here].id });
});
