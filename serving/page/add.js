// Adding images with a write key, in requests of accepted size; shows the outcome of each image.

import { ask } from "./api.js";
import { $, complain, counted, element, tell } from "./dom.js";
import { known } from "./limits.js";
import { presentItems } from "./results.js";

const AT_ONCE = 4; // images per request; few, so that progress is visible
// Statuses that an image may cause. Any other status, for example because of the key, concerns all images.
const OF_IMAGES = new Set([400, 408, 409, 413, 415, 422, 500, 504]);

/** Add the files, group by group. Throws an error that concerns all of them, but still shows the outcome so far. */
async function add(files, label) {
  const done = { items: [], fresh: 0, refused: [], differing: [] };
  let left = grouped(files);
  try {
    while (left.length) {
      $("add-note").textContent = `${files.length - left.flat().length} of ${files.length} sent`;
      const [group, ...others] = left;
      const answer = await send(group, label);
      if (answer) keep(done, answer, group);
      // Send a refused group again one by one: each image gets its own reason, and good ones are added.
      left = answer ? others : [...group.map((file) => [file]), ...others];
    }
  } finally {
    show(done, left.flat().length);
  }
}

/** Group the files, one group per request; a file that is larger than a request may be is alone. */
function grouped(files) {
  const { max_images, max_body } = known();
  const most = Math.min(AT_ONCE, max_images);
  const groups = [];
  let size = 0;
  for (const file of files) {
    const fits = groups.length && groups.at(-1).length < most && size + file.size <= max_body;
    if (!fits) groups.push([]);
    size = fits ? size + file.size : file.size;
    groups.at(-1).push(file);
  }
  return groups;
}

/** Return the service's answer with its refusals per image; null if it refuses a group of several as a whole. */
async function send(files, label) {
  const body = new FormData();
  for (const file of files) body.append("image", file, file.name);
  if (label) body.append("label", label);
  if ($("add-update").checked) body.append("update", "true");
  try {
    return await ask("/items", { method: "POST", body, write: true });
  } catch (error) {
    const none = { new: 0, items: [], differing: [] };
    if (error.refused?.length) return { ...none, refused: error.refused };
    if (!OF_IMAGES.has(error.status) || error.code?.startsWith("invalid_")) throw error;
    return files.length > 1 ? null : { ...none, refused: [{ number: 0, error }] };
  }
}

function keep(done, answer, group) {
  done.items.push(...answer.items);
  done.fresh += answer.new;
  done.refused.push(...answer.refused.map(({ number, error }) => `${group[number].name}: ${error.message}`));
  done.differing.push(...answer.differing.map((one) => told(one, group[one.number])));
}

/** Describe an existing image whose label differs from the new one. */
function told({ id, label, updated }, file) {
  const had = label ? `with label ${label}` : "without a label";
  return `${file.name}: exists as item ${id} ${had}; ${updated ? "it has the new label now" : "it was not changed"}`;
}

function show({ items, fresh, refused, differing }, left) {
  const there = items.length - fresh;
  const parts = [
    `${counted(fresh, "image")} added`,
    there && `${there} existed`,
    refused.length && `${refused.length} refused`,
    left && `${left} not sent`,
  ];
  $("add-note").textContent = parts.filter(Boolean).join(", ");
  $("add-refused").replaceChildren(...refused.map((text) => element("li", "", text)));
  $("add-differing").replaceChildren(...differing.map((text) => element("li", "", text)));
  if (items.length) presentItems("Added", "Click one to search from it", items);
}

$("add-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("add-submit").disabled = true;
  $("add-refused").replaceChildren();
  $("add-differing").replaceChildren();
  complain("");
  try {
    await add([...$("add-files").files], $("add-label").value.trim());
    $("add-files").value = "";
  } catch (error) {
    complain(error.message);
  }
  $("add-submit").disabled = false;
  tell("changed");
});
