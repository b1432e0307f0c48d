// The form for text queries. It is shown if the model has a text tower.

import { $, listen, tell } from "./dom.js";

/** text: the text tower in GET /model, or null. */
export function offerText(text) {
  $("text-form").hidden = !text;
}

$("text-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (text) tell("ask", { text });
});
listen("query", (query) => ($("text").value = query?.text || ""));
