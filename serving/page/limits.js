// The service's limits: bytes per image, images and bytes per request, results per search.

import { ask } from "./api.js";
import { $, element } from "./dom.js";

const UNKNOWN = { max_bytes: Infinity, max_images: Infinity, max_body: Infinity, max_k: Infinity };
let limits = null; // null until the service reported them

/** Return the limits, or infinite ones if they are unknown yet. */
export const known = () => limits || UNKNOWN;

/** Return the answer of GET /model, and remember its limits. */
export async function askModel() {
  const model = await ask("/model");
  limits = { ...UNKNOWN, ...model.limits };
  offerCounts(limits.max_k);
  return model;
}

/** Wait until the limits are known. An address with a query starts a search as soon as the page is loaded. */
export async function learned() {
  if (!limits) await askModel();
}

/** Limit the offered numbers of results to the maximum of a search. */
function offerCounts(most) {
  const counts = [...$("k").options].map(({ value }) => Number(value));
  if (Math.max(...counts) <= most) return;
  const chosen = Math.min(Number($("k").value), most);
  const allowed = new Set(counts.map((count) => Math.min(count, most)));
  $("k").replaceChildren(...[...allowed].map((count) => element("option", "", count)));
  $("k").value = chosen;
}
