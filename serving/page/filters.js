// Filters of the results: labels, least similarity, and order.

import { ask } from "./api.js";
import { $, button, counted, element, listen, tell } from "./dom.js";
import { chosenValues, clearMetadata, where } from "./metadata.js";

const OFFERED = 12; // labels shown as buttons; users type the others
const chosen = new Set();
let known = [];
let calibrated = false;

export const chosenLabels = () => [...chosen];

/** Write the filters into a search's parameters. Return true if one was left out because texts have no p_same. */
export function fill(parameters, byText = false) {
  for (const label of chosen) parameters.append("label", label);
  if (where()) parameters.set("where", where());
  const least = $("least").checkValidity() && $("least").value;
  const unsure = Boolean(least && calibrated && byText);
  if (least && !unsure) {
    parameters.set(calibrated ? "min_p" : "min_similarity", calibrated ? Number(least) / 100 : Number(least));
  }
  if ($("rerank").value !== "none") parameters.set("rerank", $("rerank").value);
  return unsure;
}

export function isFiltering() {
  return chosen.size > 0 || chosenValues() > 0 || Boolean($("least").value);
}

/** Choose the unit of the threshold: a probability if the gallery is calibrated, otherwise the similarity. */
export function setCalibrated(can) {
  calibrated = can;
  $("least-label").textContent = can ? "Least probability of the same class, in %" : "Least similarity";
  Object.assign($("least"), can ? { min: 0, max: 100, step: 1 } : { min: -1, max: 1, step: 0.01 });
}

export async function loadLabels() {
  const { labels, total } = await ask("/labels");
  known = labels;
  $("labels-note").textContent = counted(total, "label");
  const option = ({ label, items }) => Object.assign(element("option"), { value: label, label: `${label} (${items})` });
  $("label-list").replaceChildren(...labels.map(option));
  draw();
}

export function clearFilters() {
  chosen.clear();
  clearMetadata();
  $("least").value = "";
  $("rerank").value = "none";
  draw();
  tell("filtered");
}

function choose(label) {
  if (!chosen.delete(label)) chosen.add(label);
  draw();
  tell("filtered");
}

function draw() {
  const counts = new Map(known.map(({ label, items }) => [label, items]));
  const offered = new Set([...known.slice(0, OFFERED).map(({ label }) => label), ...chosen]);
  const focused = document.activeElement?.dataset?.label;
  const chips = [...offered].map((label) => {
    const chip = button("chip", label, () => choose(label));
    if (counts.has(label)) chip.append(element("span", "many", ` ${counts.get(label).toLocaleString()}`));
    chip.dataset.label = label;
    chip.setAttribute("aria-pressed", chosen.has(label));
    return element("li", "", chip);
  });
  $("chips").replaceChildren(...chips);
  chips.map((chip) => chip.firstChild).find((chip) => chip.dataset.label === focused)?.focus();
  const active = chosen.size + chosenValues() + Boolean($("least").value) + ($("rerank").value !== "none");
  $("filters-note").textContent = active ? `${active} set` : "";
  $("filters-clear").hidden = !active;
}

function typed() {
  const label = $("label").value.trim();
  $("label").value = "";
  if (label && !chosen.has(label)) choose(label);
}

$("label-form").addEventListener("submit", (event) => {
  event.preventDefault();
  typed();
});
$("label").addEventListener("input", (event) => {
  // Only a label picked from the list: while typing "ab", "a" must not choose the label "a".
  const picked = !event.inputType || event.inputType === "insertReplacementText";
  if (picked && known.some(({ label }) => label === $("label").value)) typed();
});
for (const id of ["least", "rerank"]) {
  $(id).addEventListener("change", () => {
    if (!$(id).reportValidity()) return;
    draw();
    tell("filtered");
  });
}
listen("filtered", draw);
$("filters-clear").addEventListener("click", clearFilters);
