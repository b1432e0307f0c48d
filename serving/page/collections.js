// Links between the pages of a service's collections.

import { ask } from "./api.js";
import { $, element } from "./dom.js";

const NAMED = /\/collections\/([^/]+)\/$/.exec(location.pathname);

/** Show the collections that the key may read; show nothing if the service has one gallery. */
export async function loadCollections() {
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
