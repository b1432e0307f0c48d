// The query: images, items and texts, the region of an image, and the filters of the results.

import { ask, known } from "./api.js";
import { $, breakable, button, bytes, complain, counted, element, listen, show, tell, words } from "./dom.js";

const files = new Map(); // {file, url, crop} by URL, because the browser's history cannot hold a file
let query = null; // {parts: [{file, url, crop}, {id} or {text}, each with its weight]}

export const current = () => query;

/** Return the part of a query that is nothing else, or null. */
export const only = (asked) => (asked?.parts.length === 1 && asked.parts[0].weight > 0 ? asked.parts[0] : null);

/** Show a query, or the gallery for null, and add it to the browser's history. */
export function go(next, remember = true) {
  const fromCard = $("grid").contains(document.activeElement);
  query = next;
  complain("");
  if (remember) history.pushState({ parts: next?.parts.map(({ url, id, text, weight }) => ({ url, id, text, weight })) }, "", address(next));
  display();
  offerCrop();
  scrollTo({ top: 0 });
  if (fromCard) $("results-title").focus({ preventScroll: true }); // the card with the focus disappears
  tell("query", query);
}

/** Search by one part alone. */
export const search = (part) => go({ parts: [{ weight: 1, ...part }] });

const MOST = 16; // parts that the service accepts

/** Add a part to the query. */
export function join(part) {
  if (query && query.parts.length >= MOST) return complain(`A query has at most ${MOST} parts. Leave one out first.`);
  go({ parts: [...(query?.parts || []), { weight: 1, ...part }] });
}

/** Return the query of the current history entry. A file is lost when the user leaves the page. */
export function remembered() {
  const said = new URLSearchParams(location.search);
  const single = { id: Number(said.get("id")) || undefined, text: said.get("text") || undefined };
  const typed = said.has("query") ? read(said.get("query")) : single.id || single.text ? [single] : [];
  const parts = (history.state ? history.state.parts || [] : typed).map((part) => ({ weight: 1, ...part, ...files.get(part.url) }));
  return parts.length && parts.every(({ file, id, text }) => file || id || text) ? { parts } : null;
}

/** Return the parts in an address, which anybody may have written. */
function read(text) {
  try {
    return JSON.parse(text).slice(0, MOST).map(({ id, text, weight }) => ({ id, text, weight: Number(weight) || 1 }));
  } catch {
    return [];
  }
}

function address(next) {
  if (!next || next.parts.some(({ file }) => file)) return location.pathname;
  const { id, text } = only(next) || {};
  if (id || text) return `?${new URLSearchParams(id ? { id } : { text })}`;
  return `?${new URLSearchParams({ query: JSON.stringify(next.parts) })}`;
}

async function display() {
  document.body.classList.toggle("asked", Boolean(query));
  $("query").hidden = $("count").hidden = !query;
  $("shuffle").hidden = Boolean(query);
  const single = only(query);
  $("text").value = single?.text || "";
  if (!query) return;
  const seen = query.parts.find(({ text }) => !text);
  $("query-image").removeAttribute("src");
  $("query-image").parentElement.hidden = !seen;
  if (seen) show($("query-image"), seen.url || `items/${seen.id}/thumbnail`);
  if (!single) return describe("A sum of parts", counted(query.parts.length, "part"));
  if (single.text) return describe(single.text, "");
  if (single.file) return describe(single.file.name || "pasted image", bytes(single.file.size));
  describe(`item ${single.id}`, "");
  const wanted = query;
  const item = await ask(`/items/${single.id}`).catch(() => null);
  if (item && wanted === query) describe(words(item.label), item.source, item.label);
}

function describe(name, note, title = "") {
  $("query-name").replaceChildren(...breakable(name));
  $("query-name").title = title || "";
  $("query-note").replaceChildren(...breakable(note));
}

// Images: dropped, pasted, chosen, or taken by the camera.

let depth = 0; // number of nested elements under a dragged file

let taken = null; // the last file that was chosen, while it is made smaller

async function take(chosen, use = search) {
  if (!chosen) return;
  taken = chosen;
  const name = chosen.name || "The image";
  if (chosen.size === 0) return complain(`${name} is empty. Choose another image.`);
  const file = await shrunk(chosen);
  if (taken !== chosen) return;
  const most = known().max_bytes;
  if (file.size > most) {
    return complain(`${name} has ${bytes(file.size)}; at most ${bytes(most)} are accepted. Choose a smaller image.`);
  }
  const part = { file, url: URL.createObjectURL(file), crop: null };
  files.set(part.url, part);
  use(part);
}

const LARGE = 8 * 2 ** 20; // bytes of a file above which a smaller picture is sent
const SHORT = 1280; // pixels of its short side
const USUAL = 200_000_000; // a service that accepts this many pixels says itself which image has more

/** Return a smaller picture of a large image, or the file itself if it is small or if the browser cannot read it. */
async function shrunk(file) {
  const { max_bytes, max_pixels } = known();
  const small = file.size <= Math.min(LARGE, max_bytes);
  if (small && max_pixels >= USUAL) return file;
  const picture = await createImageBitmap(file).catch(() => null);
  if (!picture) return file;
  const { width, height } = picture;
  if (small && width * height <= max_pixels) return file;
  const scale = Math.min(1, SHORT / Math.min(width, height), Math.sqrt(max_pixels / (width * height)));
  const canvas = Object.assign(element("canvas"), { width: Math.max(1, Math.floor(scale * width)), height: Math.max(1, Math.floor(scale * height)) });
  const context = canvas.getContext("2d");
  context.fillStyle = "white"; // as the service shows what is transparent
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  picture.close();
  const smaller = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.95));
  return smaller ? new File([smaller], file.name, { type: smaller.type }) : file;
}

function firstFile(transfer) {
  return [...(transfer?.files || [])][0];
}

function carriesFiles(event) {
  return [...(event.dataTransfer?.types || [])].includes("Files");
}

addEventListener("dragenter", (event) => {
  if (carriesFiles(event)) $("overlay").hidden = ++depth === 0;
});
addEventListener("dragleave", (event) => {
  if (carriesFiles(event)) $("overlay").hidden = --depth <= 0;
});
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  depth = 0;
  $("overlay").hidden = true;
  const file = firstFile(event.dataTransfer);
  if (file) take(file);
  else complain("That is not a file. Drop an image file, or paste an image.");
});
addEventListener("paste", (event) => {
  if (event.target.closest?.("input:not([type=file])")) return; // the text belongs to that field
  const file = firstFile(event.clipboardData);
  if (file) take(file);
  else complain("The clipboard does not hold an image. Copy an image first, or choose a file.");
});
for (const [id, use] of [["file", search], ["camera", search], ["file-add", join]]) {
  $(id).addEventListener("change", (event) => {
    take(event.target.files[0], use);
    event.target.value = ""; // so that choosing the same file again is an event
  });
}

/** text: the text tower in GET /model, or null. */
export function offerText(text) {
  $("text-form").hidden = !text;
}

$("text-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (text) (event.submitter === $("text-add") ? join : search)({ text });
});

// The region of the image to search with: dragged, or typed in percent.

const SIDES = ["left", "top", "right", "bottom"];
const LEAST = 0.02; // of a side; a smaller drag is a click
const WHOLE = [0, 0, 1, 1];
let start = null; // start of the drag, as fractions of the sides

/** Offer to crop an image that is the whole query. Of an item, the page has only the thumbnail. */
function offerCrop() {
  const { file, url, crop } = only(query) || {};
  $("crop-open").hidden = !file;
  openCrop(false);
  noteCrop();
  if (!file) return;
  $("crop-image").src = url;
  fillIn(crop || WHOLE);
}

function openCrop(opened) {
  $("crop").hidden = !opened;
  $("crop-open").setAttribute("aria-expanded", opened);
  if (opened) $("crop-left").focus({ preventScroll: true });
}

function typedBox() {
  return SIDES.map((side) => Math.min(100, Math.max(0, Number($(`crop-${side}`).value))) / 100);
}

function fillIn(box) {
  SIDES.forEach((side, i) => ($(`crop-${side}`).value = Math.round(1000 * box[i]) / 10));
  outline();
}

function outline() {
  const [left, top, right, bottom] = typedBox();
  const part = $("crop-box").style;
  [part.left, part.top] = [`${100 * left}%`, `${100 * top}%`];
  [part.width, part.height] = [`${100 * Math.max(0, right - left)}%`, `${100 * Math.max(0, bottom - top)}%`];
  $("crop-right").setCustomValidity(left < right ? "" : "The right side must be to the right of the left side.");
  $("crop-bottom").setCustomValidity(top < bottom ? "" : "The bottom must be below the top.");
  $("crop-box").hidden = left >= right || top >= bottom;
}

function place(event) {
  const area = $("crop-stage").getBoundingClientRect();
  const inside = (value) => Math.min(1, Math.max(0, value));
  return [inside((event.clientX - area.left) / area.width), inside((event.clientY - area.top) / area.height)];
}

function drag(event) {
  if (!start) return;
  const [x, y] = place(event);
  const box = [Math.min(x, start[0]), Math.min(y, start[1]), Math.max(x, start[0]), Math.max(y, start[1])];
  if (box[2] - box[0] >= LEAST && box[3] - box[1] >= LEAST) fillIn(box);
}

function useCrop(box) {
  const part = only(query);
  part.crop = box.join() === WHOLE.join() ? null : box.map((side) => Math.round(1000 * side) / 1000);
  files.get(part.url).crop = part.crop;
  noteCrop();
  tell("filtered");
}

function noteCrop() {
  const crop = only(query)?.crop;
  const [left, top, right, bottom] = (crop || []).map((side) => `${Math.round(100 * side)}`);
  $("crop-note").textContent = crop ? `Region: ${left} to ${right} % across, ${top} to ${bottom} % down` : "";
}

$("crop-open").addEventListener("click", () => openCrop($("crop").hidden));
$("crop-stage").addEventListener("pointerdown", (event) => {
  event.preventDefault();
  start = place(event);
  $("crop-stage").setPointerCapture(event.pointerId);
});
$("crop-stage").addEventListener("pointermove", drag);
for (const end of ["pointerup", "pointercancel"]) $("crop-stage").addEventListener(end, () => (start = null));
for (const side of SIDES) $(`crop-${side}`).addEventListener("input", outline);
$("crop-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useCrop(typedBox());
});
$("crop-whole").addEventListener("click", () => {
  fillIn(WHOLE);
  useCrop(WHOLE);
});

// Filters: labels, metadata, least similarity, and order. Values of one metadata key are alternatives; an item must
// meet all keys.

const OFFERED = 12; // labels and values shown as buttons; users type the others
const labels = { known: [], chosen: new Set() }; // known: [{label, items}]
const metadata = { known: null, chosen: new Map() }; // known: [{key, value, items}] after loading; chosen: text -> {key, values}
let calibrated = false;

export const chosenLabels = () => [...labels.chosen];

/** Return the parameter `where` of a search; null if no metadata is chosen. */
export function where() {
  if (!metadata.chosen.size) return null;
  const wanted = {};
  for (const { key, values } of metadata.chosen.values()) wanted[key] = [...(wanted[key] || []), ...values];
  return JSON.stringify(wanted);
}

/** Write the filters into a search's parameters. Return true if one was left out because only pictures have a p_same. */
export function fill(parameters, byPicture) {
  for (const label of labels.chosen) parameters.append("label", label);
  if (where()) parameters.set("where", where());
  const least = $("least").checkValidity() && $("least").value;
  const unsure = Boolean(least && calibrated && !byPicture);
  if (least && !unsure) {
    parameters.set(calibrated ? "min_p" : "min_similarity", calibrated ? Number(least) / 100 : Number(least));
  }
  if ($("rerank").value !== "none") parameters.set("rerank", $("rerank").value);
  return unsure;
}

const filterCount = () => labels.chosen.size + metadata.chosen.size + Boolean($("least").value);

export const isFiltering = () => filterCount() > 0;

/** Choose the unit of the threshold: a probability if the gallery is calibrated, otherwise the similarity. */
export function setCalibrated(can) {
  calibrated = can;
  $("least-label").textContent = can ? "Least probability of the same class, in %" : "Least similarity";
  Object.assign($("least"), can ? { min: 0, max: 100, step: 1 } : { min: -1, max: 1, step: 0.01 });
}

export async function loadLabels() {
  const { labels: loaded, total } = await ask("/labels");
  labels.known = loaded;
  $("labels-note").textContent = counted(total, "label");
  const option = ({ label, items }) => Object.assign(element("option"), { value: label, label: `${words(label)} (${items})` });
  $("label-list").replaceChildren(...loaded.map(option));
  drawFilters();
}

async function loadMetadata() {
  if (metadata.known || !$("filters").open) return;
  try {
    const { values, total } = await ask("/metadata");
    metadata.known = values;
    $("values-note").textContent = counted(total, "value");
    $("metadata").hidden = !total;
    $("key-list").replaceChildren(...options(values.map(({ key }) => key)));
    drawFilters();
  } catch (error) {
    complain(error.message, loadMetadata);
  }
}

function options(values) {
  return [...new Set(values)].map((value) => Object.assign(element("option"), { value }));
}

export function clearFilters() {
  labels.chosen.clear();
  metadata.chosen.clear();
  $("least").value = "";
  $("rerank").value = "none";
  tell("filtered");
}

function chooseLabel(label) {
  if (!labels.chosen.delete(label)) labels.chosen.add(label);
  tell("filtered");
}

const pair = (key, value) => `${key}: ${value}`;

function chooseValue(key, text) {
  const name = pair(key, text);
  if (!metadata.chosen.delete(name)) metadata.chosen.set(name, { key, values: meant(key, text) });
  tell("filtered");
}

/** Return the values that a text may mean: 1908 is a number in some galleries and a text in others. */
function meant(key, text) {
  const found = (metadata.known || []).filter((one) => one.key === key && `${one.value}` === text).map(({ value }) => value);
  if (found.length) return found;
  const number = text.trim() && Number(text);
  return Number.isFinite(number) && text.trim() ? [text, number] : [text];
}

function drawFilters() {
  const counts = new Map(labels.known.map(({ label, items }) => [label, items]));
  const offered = new Set([...labels.known.slice(0, OFFERED).map(({ label }) => label), ...labels.chosen]);
  drawChips($("chips"), [...offered].map((label) => ({
    id: label, text: words(label), items: counts.get(label), pressed: labels.chosen.has(label), choose: () => chooseLabel(label),
  })));
  const rows = new Map((metadata.known || []).map((one) => [pair(one.key, one.value), one]));
  const values = new Map([...[...rows].slice(0, OFFERED), ...[...metadata.chosen].map(([name, { key }]) => [name, rows.get(name) || { key }])]);
  drawChips($("values"), [...values].map(([name, { key, items }]) => ({
    id: name, text: name, items, pressed: metadata.chosen.has(name), choose: () => chooseValue(key, name.slice(key.length + 2)),
  })));
  const active = filterCount() + ($("rerank").value !== "none");
  $("filters-note").textContent = active ? `${active} set` : "";
  $("filters-clear").hidden = !active;
}

/** Draw chips {id, text, items, pressed, choose}; the chip with the focus keeps it. */
function drawChips(list, rows) {
  const focused = document.activeElement?.dataset?.chip;
  const chips = rows.map(({ id, text, items, pressed, choose }) => {
    const chip = button("chip", text, choose);
    if (items) chip.append(element("span", "many", ` ${items.toLocaleString()}`));
    chip.dataset.chip = chip.title = id;
    chip.setAttribute("aria-pressed", pressed);
    return chip;
  });
  list.replaceChildren(...chips.map((chip) => element("li", "", chip)));
  list.hidden = !chips.length;
  chips.find((chip) => chip.dataset.chip === focused)?.focus();
}

/** Choose the typed label, which may be written in words. */
function takeTypedLabel() {
  const typed = $("label").value.trim();
  $("label").value = "";
  const inWords = labels.known.filter(({ label }) => words(label).toLowerCase() === typed.toLowerCase());
  const exact = labels.known.some(({ label }) => label === typed);
  const label = !exact && inWords.length === 1 ? inWords[0].label : typed;
  if (label && !labels.chosen.has(label)) chooseLabel(label);
}

$("label-form").addEventListener("submit", (event) => {
  event.preventDefault();
  takeTypedLabel();
});
$("label").addEventListener("input", (event) => {
  // Only a label picked from the list: while typing "ab", "a" must not choose the label "a".
  const picked = !event.inputType || event.inputType === "insertReplacementText";
  if (picked && labels.known.some(({ label }) => label === $("label").value)) takeTypedLabel();
});
for (const id of ["least", "rerank"]) {
  $(id).addEventListener("change", () => $(id).reportValidity() && tell("filtered"));
}
$("metadata-key").addEventListener("change", () => {
  const values = (metadata.known || []).filter(({ key }) => key === $("metadata-key").value);
  $("value-list").replaceChildren(...options(values.map(({ value }) => `${value}`)));
});
$("value-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const [key, text] = [$("metadata-key").value, $("metadata-value").value.trim()];
  $("metadata-value").value = "";
  if (!metadata.chosen.has(pair(key, text))) chooseValue(key, text);
});
$("filters").addEventListener("toggle", loadMetadata);
$("filters-clear").addEventListener("click", clearFilters);
listen("filtered", drawFilters);
listen("changed", () => {
  metadata.known = null;
  loadMetadata();
});
