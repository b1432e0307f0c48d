// Filters on metadata. Values of one key are alternatives; an item must meet all keys.

import { ask } from "./api.js";
import { $, button, complain, counted, element, listen, tell } from "./dom.js";

const OFFERED = 12; // values shown as buttons; users type the others
const chosen = new Map(); // from the shown text "key: value" to {key, values}
let known = null; // [{key, value, items}], null until they are loaded

const named = (key, value) => `${key}: ${value}`;

/** Return the parameter `where` of a search; null if nothing is chosen. */
export function where() {
  if (!chosen.size) return null;
  const wanted = {};
  for (const { key, values } of chosen.values()) wanted[key] = [...(wanted[key] || []), ...values];
  return JSON.stringify(wanted);
}

export const chosenValues = () => chosen.size;

export function clearMetadata() {
  chosen.clear();
  draw();
}

async function load() {
  if (known || !$("filters").open) return;
  try {
    const { values, total } = await ask("/metadata");
    known = values;
    $("values-note").textContent = counted(total, "value");
    $("metadata").hidden = !total;
    const keys = [...new Set(values.map(({ key }) => key))];
    $("key-list").replaceChildren(...keys.map((key) => Object.assign(element("option"), { value: key })));
    draw();
  } catch (error) {
    complain(error.message);
  }
}

function toggle(key, text) {
  const name = named(key, text);
  if (!chosen.delete(name)) chosen.set(name, { key, values: meant(key, text) });
  draw();
  tell("filtered");
}

/** Return the values that a text may mean: 1908 is a number in some galleries and a text in others. */
function meant(key, text) {
  const found = (known || []).filter((one) => one.key === key && `${one.value}` === text).map(({ value }) => value);
  if (found.length) return found;
  const number = text.trim() && Number(text);
  return Number.isFinite(number) && text.trim() ? [text, number] : [text];
}

function draw() {
  const items = new Map((known || []).map((one) => [named(one.key, one.value), one]));
  const offered = new Map([...[...items].slice(0, OFFERED), ...[...chosen].map(([name, { key }]) => [name, items.get(name) || { key }])]);
  const focused = document.activeElement?.dataset?.value;
  const chips = [...offered].map(([name, { key, items: many }]) => {
    const chip = button("chip", name, () => toggle(key, name.slice(key.length + 2)));
    if (many) chip.append(element("span", "many", ` ${many.toLocaleString()}`));
    chip.dataset.value = name;
    chip.setAttribute("aria-pressed", chosen.has(name));
    return element("li", "", chip);
  });
  $("values").replaceChildren(...chips);
  $("values").hidden = !chips.length;
  chips.map((chip) => chip.firstChild).find((chip) => chip.dataset.value === focused)?.focus();
}

$("filters").addEventListener("toggle", load);
listen("changed", () => {
  known = null;
  load();
});
$("metadata-key").addEventListener("change", () => {
  const values = (known || []).filter(({ key }) => key === $("metadata-key").value).map(({ value }) => `${value}`);
  $("value-list").replaceChildren(...[...new Set(values)].map((value) => Object.assign(element("option"), { value })));
});
$("value-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const [key, text] = [$("metadata-key").value, $("metadata-value").value.trim()];
  $("metadata-value").value = "";
  if (!chosen.has(named(key, text))) toggle(key, text);
});
