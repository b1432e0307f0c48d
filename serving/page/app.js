// The search page: its header, its panels, and the events that connect the other modules.

import { ask, askModel, carry } from "./api.js";
import { $, complain, counted, curve, element, listen, percent, reliability, tell, words } from "./dom.js";
import "./map.js";
import "./parts.js";
import { current, go, loadLabels, offerText, remembered, search, setCalibrated } from "./query.js";
import { present } from "./results.js";
import "./write.js";

listen("ask", (part) => search(part));
listen("query", (query) => present(query));
listen("filtered", () => present(current()));
listen("changed", loadFacts);
// Meanwhile the gallery may have got other items, or another model.
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && loadFacts());
addEventListener("popstate", () => go(remembered(), false));

$("k").addEventListener("change", () => present(current()));
$("clear").addEventListener("click", () => go(null));
$("shuffle").addEventListener("click", () => present(null));
// Do not follow the link: that would add a step to the history, which holds only queries.
$("skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("results-title").focus();
});

async function loadFacts() {
  try {
    const model = await askModel();
    offerText(model.text);
    const { items, labels } = model.gallery;
    $("facts").textContent = `${counted(items, "image")} · ${counted(labels, "label")} · ${model.name}`;
    await loadLabels();
    setCalibrated((await ask("/stats")).calibration !== null);
    await loadCollections();
  } catch (error) {
    if (error.code === "name_a_collection") return enter();
    $("facts").textContent = ""; // the grid shows the error
  }
}

/** Lead to the first collection that the key may read, from the root of a service whose collections all have keys. */
async function enter() {
  const { collections } = await ask("/collections");
  carry(collections[0].path);
  location.replace(`.${collections[0].path}`);
}

// Links between the pages of a service's collections.

const NAMED = /\/collections\/([^/]+)\/$/.exec(location.pathname);

/** Show the collections that the key may read; show nothing if the service has one gallery. */
async function loadCollections() {
  if (!NAMED) return;
  document.title = `${NAMED[1]}: image search`;
  const { collections } = await ask("/../../collections");
  $("collection-list").replaceChildren(...collections.map(link));
  $("collections").hidden = false;
}

function link({ name, items }) {
  const made = element("a", "quiet", name, " ", element("span", "many", items.toLocaleString()));
  made.href = `../${name}/`;
  if (name === NAMED[1]) made.setAttribute("aria-current", "page");
  return element("li", "", made);
}

// The panels above the search. Only one is open at a time.

const buttons = [...document.querySelectorAll("[data-panel]")];

function open(name) {
  for (const one of buttons) {
    const shown = one.dataset.panel === name;
    $(one.dataset.panel).hidden = !shown;
    one.setAttribute("aria-expanded", shown);
  }
  if (name) tell("panel", name);
}

for (const one of buttons) {
  const name = one.dataset.panel;
  const close = () => {
    open(null);
    one.focus();
  };
  one.addEventListener("click", () => {
    if (one.getAttribute("aria-expanded") === "true") return close();
    open(name);
    $(`${name}-title`).focus({ preventScroll: true });
  });
  $(name).querySelector(".close").addEventListener("click", close);
  $(name).addEventListener("keydown", (event) => event.key === "Escape" && close());
}

// The panel "Model and evaluation".

const KEPT = "Predicted and observed share of the same class, in tenths of p_same, on classes outside the fit.";
const METRICS = ["recall_at_1", "map_at_r"];

async function loadModel() {
  $("model-note").textContent = "Reading…";
  try {
    const [model, stats] = await Promise.all([ask("/model"), ask("/stats")]);
    const evaluation = await ask("/evaluate").catch((error) => (error.status === 404 ? null : Promise.reject(error)));
    $("model-facts").replaceChildren(...facts(model, stats));
    evaluate(evaluation, stats.calibration);
  } catch (error) {
    $("model-note").textContent = "";
    complain(error.message, loadModel);
  }
}

function facts(model, { items, labels, index }) {
  const unmeasured = index.kind === "milvus" ? "searched by Milvus" : "exact";
  const place = index.device === "cpu" ? "" : ` on disk, exact on ${index.device}`;
  const recall = index.recall === null ? unmeasured : `finds ${percent(index.recall)} of the ${index.k} nearest`;
  const rows = {
    Model: model.name,
    Trained: [model.method, model.backbone, model.dataset].filter(Boolean).join(" · "),
    Embedding: `${model.dim} numbers, by ${model.runtime} (${model.precision}, ${model.device})`,
    Gallery: `${counted(items, "image")}, ${counted(labels, "label")}`,
    Index: `${index.kind}${place}: ${recall}${index.waiting ? `; ${counted(index.waiting, "change")} to be compacted` : ""}`,
    Licence: model.licence || "not stated",
    Fingerprint: model.fingerprint.slice(0, 12),
  };
  return Object.entries(rows).flatMap(([name, value]) => [element("dt", "", name), element("dd", "", value)]);
}

function evaluate(evaluation, calibration) {
  $("steps").hidden = !evaluation?.steps.length;
  $("steps-body").replaceChildren(...(evaluation?.steps || []).map(step));
  $("model-note").textContent = evaluation ? measured(evaluation) : "The labelled items have not been measured yet.";
  const fitted = calibration ? [curve(calibration), element("figcaption", "", explained(calibration))] : [];
  const reason = evaluation?.not_calibrated || "Similarities are not calibrated yet. Measuring calibrates them too.";
  const bins = evaluation?.reliability || [];
  const kept = bins.length ? [reliability(bins), element("figcaption", "", KEPT)] : [];
  $("calibration").replaceChildren(...(fitted.length ? fitted : [element("figcaption", "", reason)]), ...kept);
}

function measured({ date, items, index_recall_at_10: recall, changed_since: changed }) {
  const when = new Date(date).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
  const found = typeof recall === "number" ? `; the index finds ${percent(recall)} of the 10 nearest` : "";
  return `Measured ${when} over ${counted(items, "item")}${found}.${changed ? " The gallery has changed since." : ""}`;
}

function step({ step: name, queries, classes, metrics, intervals }) {
  const cells = METRICS.map((key) => {
    const cell = element("td", "", metrics[key].toFixed(4));
    const bounds = intervals[key];
    if (bounds) cell.append(element("small", "", ` ${bounds[0].toFixed(4)} to ${bounds[1].toFixed(4)}`));
    return cell;
  });
  const head = element("th", "", name);
  head.scope = "row";
  const counts = queries.toLocaleString() + (classes ? ` of ${counted(classes, "label")}` : "");
  return element("tr", "", head, ...cells, element("td", "", counts));
}

function explained({ pairs, neighbours, error, error_not_measured: unmeasured, first_contrasts: first = [] }) {
  const without = unmeasured ? ` Its error on other classes was ${unmeasured}.` : "";
  const off = typeof error === "number" ? ` On classes outside the fit its average error is ${percent(error)}.` : without;
  const sources = `${counted(pairs, "neighbour")} (the first ${neighbours} of each labelled item, where their label is known)`;
  const own = first.length ? " The first result has a curve of its own, which bounds the later ones; the picture shows theirs." : "";
  return `The probability that a result has the query's class, fitted to ${sources}.${off}${own}`;
}

$("measure").addEventListener("click", async () => {
  $("measure").disabled = true;
  $("model-note").textContent = "Measuring…";
  complain("");
  try {
    await ask("/evaluate", { method: "POST", write: true });
    tell("changed");
  } catch (error) {
    complain(error.message);
  }
  $("measure").disabled = false;
  await loadModel();
});
listen("panel", (name) => name === "model" && loadModel());

go(remembered(), false);
loadFacts();
