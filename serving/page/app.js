// The search page. Text from the server is only ever set as textContent: a label is never read as HTML.

const $ = (id) => document.getElementById(id);
const TINY = 64; // pictures up to this many pixels wide are shown with crisp pixels
const SAMPLE = 24;

let limits = { max_bytes: Infinity, max_pixels: Infinity };
let query = null; // {file, url} or {id}
const files = new Map(); // the queries with a file, by url: the browser's history cannot hold a file
let running = null; // the AbortController of the request under way

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function picture(source, alt) {
  const frame = element("div", "frame");
  const image = element("img");
  image.alt = alt;
  image.loading = "lazy";
  frame.append(image);
  show(image, source);
  return frame;
}

function show(image, source) {
  const frame = image.parentElement;
  image.onload = () => {
    frame.classList.remove("unshown");
    image.classList.toggle("tiny", image.naturalWidth <= TINY && image.naturalHeight <= TINY);
  };
  image.onerror = () => frame.classList.add("unshown"); // the server reads formats that browsers do not
  image.src = source;
}

function card(item) {
  const button = element("button", "card");
  button.type = "button";
  button.dataset.id = item.id;
  button.title = item.source;
  const words = element("div", "words");
  words.append(named(item.label));
  let spoken = item.label || item.source;
  if (item.similarity !== undefined) {
    words.append(likeness(item.similarity));
    spoken += `, similarity ${item.similarity.toFixed(3)}`;
  }
  button.setAttribute("aria-label", `${spoken}. Search from this image`);
  button.append(picture(item.thumbnail, ""), words);
  button.addEventListener("click", () => go({ id: item.id }));
  const place = element("li");
  place.append(button);
  return place;
}

/** A label; of one with folders in it, as Greek/alpha, the last part stands out. */
function named(label) {
  if (!label) return element("span", "label none", "no label");
  const parts = label.split("/");
  const name = element("span", "label", parts.pop());
  if (!parts.length) return name;
  const whole = element("div", "nested");
  whole.append(element("span", "folder", parts.join(" / ")), name);
  return whole;
}

function likeness(similarity) {
  const row = element("div", "likeness");
  const track = element("span", "track");
  const fill = element("span", "fill");
  fill.style.width = `${Math.max(0, similarity) * 100}%`;
  track.append(fill);
  row.append(track, element("span", "", similarity.toFixed(3)));
  return row;
}

function complain(message) {
  $("alert").textContent = message || "";
  $("alert").hidden = !message;
}

async function ask(path, options = {}) {
  running?.abort();
  const mine = (running = new AbortController());
  let answer;
  try {
    answer = await fetch(path, { ...options, signal: mine.signal });
  } catch (error) {
    if (mine.signal.aborted) throw error;
    throw new Error("The server does not answer. Is it still running?");
  }
  const body = await answer.json().catch(() => null); // what is no JSON is a refusal without a reason
  mine.signal.throwIfAborted();
  if (!answer.ok) throw new Error(body?.error?.message || `The server refused this (${answer.status}).`);
  return body;
}

async function present(work) {
  $("found").setAttribute("aria-busy", "true");
  try {
    await work();
  } catch (error) {
    if (error.name === "AbortError") return; // a newer request has taken over
    complain(error.message);
    heading("Nothing found", "");
    $("grid").replaceChildren();
  }
  $("found").setAttribute("aria-busy", "false");
}

function browse() {
  return present(async () => {
    const { items, total } = await ask(`/items?sample=${SAMPLE}`);
    complain("");
    heading("From the gallery", total ? "Click one to search from it" : "The gallery is empty");
    $("grid").replaceChildren(...items.map(card));
  });
}

function heading(title, note) {
  $("results-title").textContent = title;
  $("note").textContent = note;
}

function search() {
  return present(async () => {
    const k = $("k").value;
    const body = query.file && new FormData();
    body?.append("image", query.file, "image");
    const path = query.file ? `/search?k=${k}` : `/search?k=${k}&id=${query.id}`;
    const { results, milliseconds } = await ask(path, { method: "POST", body });
    complain("");
    const found = `${results.length} ${results.length === 1 ? "image" : "images"}, best first`;
    heading("Nearest", `${found}, in ${milliseconds.toFixed(0)} ms`);
    $("grid").replaceChildren(...results.map(card));
  });
}

async function showQuery() {
  document.body.classList.toggle("asked", Boolean(query));
  $("query").hidden = $("count").hidden = !query;
  $("shuffle").hidden = Boolean(query);
  if (!query) return;
  $("query-image").removeAttribute("src");
  if (query.file) {
    describe(query.url, query.file.name || "pasted image", size(query.file.size));
    return;
  }
  describe(`/items/${query.id}/thumbnail`, `item ${query.id}`, "");
  const wanted = query;
  const answer = await fetch(`/items/${wanted.id}`).catch(() => null);
  if (answer?.ok && wanted === query) {
    const item = await answer.json();
    if (wanted === query) describe(item.thumbnail, item.label || "no label", item.source);
  }
}

function describe(source, name, note) {
  show($("query-image"), source);
  $("query-name").textContent = name;
  $("query-note").textContent = note;
}

function size(bytes) {
  if (bytes < 1024) return `${bytes} bytes`;
  return bytes < 2 ** 20 ? `${(bytes / 1024).toFixed(0)} kB` : `${(bytes / 2 ** 20).toFixed(1)} MB`;
}

/** Show a query (or the gallery, for null) and remember it in the browser's history. */
function go(next, remember = true) {
  query = next;
  complain("");
  if (remember) history.pushState({ url: next?.url, id: next?.id }, "", next?.id ? `?id=${next.id}` : location.pathname);
  showQuery();
  scrollTo({ top: 0 });
  return next ? search() : browse();
}

/** The query that the browser's history is at; a file is forgotten once the page was left. */
function remembered() {
  const { url, id } = history.state || { id: Number(new URLSearchParams(location.search).get("id")) };
  return files.get(url) || (id ? { id } : null);
}

function take(file) {
  if (!file) return;
  if (file.size === 0) return complain(`${file.name || "The image"} is empty.`);
  if (file.size > limits.max_bytes) {
    return complain(`${file.name || "The image"} has ${size(file.size)}; at most ${size(limits.max_bytes)} are accepted.`);
  }
  const next = { file, url: URL.createObjectURL(file) };
  files.set(next.url, next);
  go(next);
}

function firstFile(transfer) {
  return [...(transfer?.files || [])][0];
}

function carriesFiles(event) {
  return [...(event.dataTransfer?.types || [])].includes("Files");
}

let depth = 0; // of nested elements that a dragged file is over
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
  else complain("That is no file. Drop an image file, or paste an image.");
});
addEventListener("paste", (event) => {
  const file = firstFile(event.clipboardData);
  if (file) take(file);
  else complain("The clipboard holds no image.");
});
// Not followed as a link: that would be a step in the history, where only queries are.
$("skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("results-title").focus();
});
addEventListener("popstate", () => go(remembered(), false));

$("file").addEventListener("change", (event) => {
  take(event.target.files[0]);
  event.target.value = ""; // so that choosing the same file again is a change
});
$("k").addEventListener("change", search);
$("clear").addEventListener("click", () => go(null));
$("shuffle").addEventListener("click", browse);

async function start() {
  go(remembered(), false);
  const answer = await fetch("/model").catch(() => null);
  if (!answer?.ok) return;
  const model = await answer.json();
  limits = model.limits;
  const { items, labels } = model.gallery;
  $("facts").textContent = `${items.toLocaleString()} images · ${labels.toLocaleString()} labels · ${model.name}`;
}

start();
