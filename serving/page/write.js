// Changes, with a write key: adding images, changing labels, and deleting items.

import { ask, forget, held, json, known, request } from "./api.js";
import { $, answer, button, complain, counted, element, listen, tell } from "./dom.js";
import { presentItems, redraw, takeAway } from "./results.js";

function showRights() {
  const may = Boolean(held("write"));
  document.body.classList.toggle("may-write", may);
  $("write-key").hidden = may;
  $("add-form").hidden = $("write-forget").hidden = !may;
  $("forget").hidden = !may && !held("read");
}

listen("keys", showRights);
$("write-key").addEventListener("click", () => request("write", "This tab keeps it until you close the tab."));
$("write-forget").addEventListener("click", () => forget("write"));
$("forget").addEventListener("click", () => {
  forget("write");
  forget("read");
  location.assign(location.pathname); // clear everything that was read with the key
});
showRights();

// Adding images, in requests of accepted size; the outcome of each image is shown.

const AT_ONCE = 4; // images per request; few, so that progress is visible
// Statuses that an image may cause. Any other status, for example because of the key, concerns all images.
const OF_IMAGES = new Set([400, 408, 409, 413, 415, 422, 500, 504]);

/** Add the files, group by group. Throws an error that concerns all of them, but still shows the outcome so far. */
async function add(files, label, key) {
  const done = { items: [], fresh: 0, refused: [], differing: [], near: [], assumed: [] };
  let left = grouped(files);
  try {
    while (left.length) {
      $("add-note").textContent = `${files.length - left.flat().length} of ${files.length} sent`;
      const [group, ...others] = left;
      const added = await send(group, label, key);
      if (added) keep(done, added, group);
      // Send a refused group again one by one: each image gets its own reason, and good ones are added.
      left = added ? others : [...group.map((file) => [file]), ...others];
    }
  } finally {
    report(done, left.flat().length);
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
async function send(files, label, key) {
  const body = new FormData();
  for (const file of files) body.append("image", file, file.name);
  if (label) body.append("label", label);
  if (key) body.append("key", key);
  if ($("add-update").checked) body.append("update", "true");
  try {
    return await ask("/items", { method: "POST", body, write: true });
  } catch (error) {
    const none = { new: 0, items: [], differing: [], near_duplicates: [] };
    if (error.refused?.length) return { ...none, refused: error.refused };
    if (!OF_IMAGES.has(error.status) || error.code?.startsWith("invalid_")) throw error;
    return files.length > 1 ? null : { ...none, refused: [{ number: 0, error }] };
  }
}

function keep(done, added, group) {
  done.items.push(...added.items);
  done.fresh += added.new;
  done.refused.push(...added.refused.map(({ number, error }) => `${group[number].name}: ${error.message}`));
  done.differing.push(...added.differing.map((one) => difference(one, group[one.number])));
  done.near.push(...added.near_duplicates.map((one) => resemblance(one, group[one.number])));
  done.assumed.push(...assumptions(added, group));
}

/** Say what was assumed about files; the items are of those that were not refused, in their order. */
function assumptions({ items, refused }, group) {
  const read = group.filter((_, number) => !refused.some((one) => one.number === number));
  return items.flatMap(({ notes }, place) => notes.map((text) => `${read[place].name}: ${text}`));
}

/** Describe an existing image whose label differs from the new one. */
function difference({ id, label, updated }, file) {
  const had = label ? `with label ${label}` : "without a label";
  return `${file.name}: exists as item ${id} ${had}; ${updated ? "it has the new label now" : "it was not changed"}`;
}

/** Warn that an added image looks like a copy of others, with a button that shows them. */
function resemblance({ id, of }, file) {
  const others = of.length > 1 ? `items ${of.slice(0, 5).join(", ")}${of.length > 5 ? ", …" : ""}` : `item ${of[0]}`;
  const shown = button("small", "Show the copies", () => tell("copies", id));
  return element("li", "", `${file.name}: added, but it looks like a copy of ${others} `, shown);
}

function report({ items, fresh, refused, differing, near, assumed }, left) {
  const there = items.length - fresh;
  const counts = [
    `${counted(fresh, "image")} added`,
    there && `${there} existed`,
    refused.length && `${refused.length} refused`,
    left && `${left} not sent`,
  ];
  $("add-note").textContent = counts.filter(Boolean).join(", ");
  $("add-refused").replaceChildren(...refused.map((text) => element("li", "", text)));
  $("add-differing").replaceChildren(...differing.map((text) => element("li", "", text)));
  $("add-near").replaceChildren(...near);
  $("add-assumed").replaceChildren(...assumed.map((text) => element("li", "", text)));
  if (items.length) presentItems("Added", "Choose one to search with it", items);
}

$("add-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const [files, key] = [[...$("add-files").files], $("add-key").value.trim()];
  if (key && files.length > 1) return complain("A key names a single image. Choose one image, or leave the key empty.");
  $("add-submit").disabled = true;
  $("add-refused").replaceChildren();
  $("add-differing").replaceChildren();
  $("add-near").replaceChildren();
  $("add-assumed").replaceChildren();
  complain("");
  try {
    await add(files, $("add-label").value.trim(), key);
    $("add-files").value = $("add-key").value = "";
  } catch (error) {
    complain(error.message);
  }
  $("add-submit").disabled = false;
  tell("changed");
});

// Changing labels and metadata, and deleting items.

async function edit(item) {
  try {
    await change(item);
  } catch (error) {
    complain(error.message);
  }
}

/** Ask for another label and other metadata, and send what differs: changes of others meanwhile stay. */
async function change(item) {
  const { label, metadata } = await ask(`/items/${item.id}`);
  $("edit-title").textContent = `Label of item ${item.id}, ${item.source}`;
  $("edit-label").value = label || "";
  $("edit-metadata").value = JSON.stringify(metadata, null, 1);
  checkMetadata();
  if ((await answer($("edit"))) !== "save") return;
  const given = $("edit-label").value.trim();
  const changes = {
    ...(given !== (label || "") && { label: given || null }),
    ...differing(metadata, objectIn($("edit-metadata").value)),
  };
  if (!Object.keys(changes).length) return;
  const kept = await ask(`/items/${item.id}`, json("PATCH", changes, { write: true }));
  redraw({ ...item, label: kept.label, metadata: kept.metadata })?.querySelector(".edit").focus();
  complain("");
  const named = kept.label ? `Item ${item.id} now has the label ${kept.label}` : `Item ${item.id} now has no label`;
  $("note").textContent = "label" in changes ? named : `Item ${item.id} now has other metadata`;
  tell("changed");
}

/** Return the JSON object of a text, {} of an empty one; null if it is something else. */
function objectIn(text) {
  try {
    const value = JSON.parse(text.trim() || "{}");
    return isObject(value) ? value : null;
  } catch {
    return null;
  }
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** Return {metadata: what to merge (RFC 7396)} to get from one object to another; {} if they are equal. */
function differing(before, after) {
  const merge = patch(before, after);
  return Object.keys(merge).length ? { metadata: merge } : {};
}

function patch(before, after) {
  const merge = {};
  for (const [key, value] of Object.entries(after)) {
    const old = Object.hasOwn(before, key) ? before[key] : undefined;
    if (JSON.stringify(value) !== JSON.stringify(old)) merge[key] = isObject(value) && isObject(old) ? patch(old, value) : value;
  }
  for (const key of Object.keys(before)) if (!Object.hasOwn(after, key)) merge[key] = null;
  return merge;
}

function checkMetadata() {
  const problem = objectIn($("edit-metadata").value) ? "" : 'Metadata are a JSON object, as {"year": 1908}';
  $("edit-metadata").setCustomValidity(problem);
}

$("edit-metadata").addEventListener("input", checkMetadata);

async function remove(item) {
  const name = item.label || item.source;
  $("confirm-question").textContent = `Delete “${name}” (item ${item.id}, ${item.source}) from the gallery? This cannot be undone.`;
  if ((await answer($("confirm"))) !== "yes") return;
  try {
    await ask(`/items/${item.id}`, { method: "DELETE", write: true });
  } catch (error) {
    if (error.status !== 404) return complain(error.message); // 404: somebody else deleted it
  }
  complain("");
  (takeAway(item.id) || $("results-title")).focus();
  $("note").textContent = `Deleted ${name}, item ${item.id}`;
  tell("changed");
}

listen("edit", edit);
listen("delete", remove);
