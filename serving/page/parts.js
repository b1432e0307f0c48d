// The parts of a query, each with its weight: more or less of it, or none.

import { ask } from "./api.js";
import { $, button, element, listen, show, words } from "./dom.js";
import { current, go, join } from "./query.js";

const STEPS = [-4, -2, -1, -0.5, 0.5, 1, 2, 4];

listen("add", (part) => join(part));

listen("query", (query) => {
  const focused = document.activeElement?.dataset?.part;
  const parts = query?.parts || [];
  $("parts").hidden = parts.length < 2 && !(parts[0]?.weight < 0);
  $("parts").replaceChildren(...($("parts").hidden ? [] : parts.map(chip)));
  if (focused) $("parts").querySelector(`[data-part="${focused}"]`)?.focus();
});

function chip(part, place) {
  const name = element("span", "name", part.text || part.file?.name || (part.file ? "pasted image" : `item ${part.id}`));
  if (part.id) ask(`/items/${part.id}`).then((item) => name.replaceChildren(words(item.label || item.source)), () => null);
  const weight = element("span", "weight", `${part.weight < 0 ? "\u2212" : "+"}${Math.abs(part.weight) === 1 ? "" : Math.abs(part.weight)}`);
  const change = (to) => go({ parts: current().parts.map((one, i) => (i === place ? { ...one, weight: to } : one)) });
  const made = element("li", part.weight < 0 ? "part minus" : "part", weight, ...(part.text ? [] : [picture(part)]), name);
  const acts = [
    ["less", "\u2212", "Less of", STEPS.findLast((step) => step < part.weight), change],
    ["more", "+", "More of", STEPS.find((step) => step > part.weight), change],
    ["out", "\u2715", "Leave out", true, () => leaveOut(place)],
  ];
  for (const [kind, sign, text, to, act] of acts) {
    const pressed = button("step", sign, () => act(to));
    pressed.disabled = to === undefined;
    pressed.dataset.part = `${kind}-${place}`;
    pressed.setAttribute("aria-label", `${text} ${part.text || part.file?.name || (part.file ? "the image" : `item ${part.id}`)}`);
    made.append(pressed);
  }
  return made;
}

function picture({ url, id }) {
  const image = element("img");
  image.alt = "";
  const frame = element("span", "frame", image);
  show(image, url || `items/${id}/thumbnail`);
  return frame;
}

function leaveOut(place) {
  const parts = current().parts.filter((part, i) => i !== place);
  go(parts.length ? { parts } : null);
}
