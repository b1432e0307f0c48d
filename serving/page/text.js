// A search by words, where the model has a tower for texts.

import { $, listen, tell } from "./dom.js";

/** text: what GET /model says of it, null where it reads none. */
export function offerText(text) {
  $("text-form").hidden = !text;
}

$("text-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (text) tell("ask", { text });
});
listen("query", (query) => ($("text").value = query?.text || ""));
