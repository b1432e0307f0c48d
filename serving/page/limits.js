// What the service takes: bytes of an image, images and bytes of a request, results of a search.

import { ask } from "./api.js";
import { $, element } from "./dom.js";

const UNKNOWN = { max_bytes: Infinity, max_images: Infinity, max_body: Infinity, max_k: Infinity };
let limits = null; // once the service has told them

/** The limits, so far as they are known now. */
export const known = () => limits || UNKNOWN;

/** What GET /model says; its limits are kept. */
export async function askModel() {
  const model = await ask("/model");
  limits = { ...UNKNOWN, ...model.limits };
  offerCounts(limits.max_k);
  return model;
}

/** Wait until the limits are known: an address with a query is searched by as soon as the page is there. */
export async function learned() {
  if (!limits) await askModel();
}

/** Offer no more results than a search may have; a larger number is offered as the most that there may be. */
function offerCounts(most) {
  const counts = [...$("k").options].map(({ value }) => Number(value));
  if (Math.max(...counts) <= most) return;
  const chosen = Math.min(Number($("k").value), most);
  const allowed = new Set(counts.map((count) => Math.min(count, most)));
  $("k").replaceChildren(...[...allowed].map((count) => element("option", "", count)));
  $("k").value = chosen;
}
