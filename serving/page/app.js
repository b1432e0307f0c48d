// The search page. This module connects the events of the others.

import "./add.js";
import { ask } from "./api.js";
import { loadCollections } from "./collections.js";
import { offer } from "./crop.js";
import { $, counted, listen } from "./dom.js";
import "./edit.js";
import { loadLabels, setCalibrated } from "./filters.js";
import "./input.js";
import { askModel } from "./limits.js";
import "./map.js";
import "./marks.js";
import "./model.js";
import "./panels.js";
import { current, go, remembered } from "./query.js";
import { present } from "./results.js";
import { offerText } from "./text.js";

listen("ask", (query) => go(query));
listen("query", (query) => {
  offer(query);
  present(query);
});
listen("filtered", () => present(current()));
listen("changed", loadFacts);
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
    $("facts").textContent = ""; // the grid shows the error
  }
}

go(remembered(), false);
loadFacts();
