// The panel "Model and evaluation".

import { ask } from "./api.js";
import { curve } from "./curve.js";
import { $, complain, counted, element, listen, percent } from "./dom.js";

const NAMES = { recall_at_1: "R@1", map_at_r: "MAP@R" };

async function load() {
  $("model-note").textContent = "Reading…";
  try {
    const [model, stats] = await Promise.all([ask("/model"), ask("/stats")]);
    const evaluation = await ask("/evaluate").catch((error) => (error.status === 404 ? null : Promise.reject(error)));
    $("model-facts").replaceChildren(...facts(model, stats));
    evaluate(evaluation, stats.calibration);
  } catch (error) {
    $("model-note").textContent = "";
    complain(error.message);
  }
}

function facts(model, { items, labels, index }) {
  const unmeasured = index.kind === "milvus" ? "searched there" : "exact";
  const recall = index.recall === null ? unmeasured : `finds ${percent(index.recall)} of the ${index.k} nearest`;
  const rows = {
    Model: model.name,
    Trained: [model.method, model.backbone, model.dataset].filter(Boolean).join(" · "),
    Embedding: `${model.dim} numbers, by ${model.runtime} (${model.precision}, ${model.device})`,
    Gallery: `${counted(items, "image")}, ${counted(labels, "label")}`,
    Index: `${index.kind}: ${recall}${index.waiting ? `; ${counted(index.waiting, "change")} to be compacted` : ""}`,
    Licence: model.licence || "not stated",
    Fingerprint: model.fingerprint.slice(0, 12),
  };
  return Object.entries(rows).flatMap(([name, value]) => [element("dt", "", name), element("dd", "", value)]);
}

function evaluate(evaluation, calibration) {
  $("steps").hidden = !evaluation;
  $("steps-body").replaceChildren(...(evaluation?.steps || []).map(step));
  $("model-note").textContent = evaluation ? measured(evaluation) : "The labelled items were not measured yet.";
  const fitted = calibration ? [curve(calibration), element("figcaption", "", explained(calibration))] : [];
  const reason = evaluation?.not_calibrated || "Similarities are not calibrated yet; measuring does that too.";
  $("calibration").replaceChildren(...(fitted.length ? fitted : [element("figcaption", "", reason)]));
}

function measured({ date, items, index_recall_at_10: recall, changed_since: changed }) {
  const when = new Date(date).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
  const found = typeof recall === "number" ? `; the index finds ${percent(recall)} of the 10 nearest` : "";
  return `Measured ${when} over ${counted(items, "item")}${found}.${changed ? " The gallery has changed since." : ""}`;
}

function step({ step: name, queries, metrics, intervals }) {
  const cells = Object.keys(NAMES).map((key) => {
    const cell = element("td", "", metrics[key].toFixed(3));
    const bounds = intervals[key];
    if (bounds) cell.append(element("small", "", ` ${bounds[0].toFixed(3)} to ${bounds[1].toFixed(3)}`));
    return cell;
  });
  const head = element("th", "", name);
  head.scope = "row";
  return element("tr", "", head, ...cells, element("td", "", queries.toLocaleString()));
}

function explained({ pairs, neighbours, error }) {
  const off = typeof error === "number" ? ` On classes that it was not fitted to it is off by ${percent(error)} on average.` : "";
  return `How likely a result is of the query's class, fitted to ${pairs.toLocaleString()} neighbours ` +
    `(the first ${neighbours} of each labelled item).${off}`;
}

$("measure").addEventListener("click", async () => {
  $("measure").disabled = true;
  $("model-note").textContent = "Measuring…";
  complain("");
  try {
    await ask("/evaluate", { method: "POST", write: true });
    dispatchEvent(new CustomEvent("zoo-changed"));
  } catch (error) {
    complain(error.message);
  }
  $("measure").disabled = false;
  await load();
});
listen("panel", (name) => name === "model" && load());
