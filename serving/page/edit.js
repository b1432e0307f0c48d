// Adding images, giving an item another label and deleting it, with a write key.

import { ask } from "./api.js";
import { card } from "./cards.js";
import { $, complain, counted, element, listen, tell } from "./dom.js";
import { forget, held, request } from "./keys.js";
import { presentItems } from "./results.js";

const AT_ONCE = 4; // images a request: progress is seen, and no request grows too large

function showRights() {
  const may = Boolean(held("write"));
  document.body.classList.toggle("may-write", may);
  $("write-key").hidden = may;
  $("add-form").hidden = $("write-forget").hidden = !may;
  $("forget").hidden = !may && !held("read");
}

async function add(files, label) {
  const items = [];
  const refused = [];
  const differing = [];
  let fresh = 0;
  for (let start = 0; start < files.length; start += AT_ONCE) {
    $("add-note").textContent = `${start} of ${files.length} sent`;
    const answer = await send(files.slice(start, start + AT_ONCE), label);
    items.push(...answer.items);
    refused.push(...answer.refused);
    differing.push(...answer.differing.map((one) => told(one, files[start + one.number])));
    fresh += answer.new;
  }
  const known = items.length - fresh;
  const parts = [`${counted(fresh, "image")} added`, known && `${known} there already`, refused.length && `${refused.length} refused`];
  $("add-note").textContent = parts.filter(Boolean).join(", ");
  $("add-refused").replaceChildren(...refused.map(({ name, error }) => element("li", "", `${name}: ${error.message}`)));
  $("add-differing").replaceChildren(...differing.map((text) => element("li", "", text)));
  if (items.length) presentItems("Added", "Click one to search from it", items);
}

/** Of an image that is there already, with another label than it was to be given. */
function told({ id, label, updated }, file) {
  const had = label ? `with label ${label}` : "without a label";
  return `${file.name}: already there as item ${id} ${had}; ${updated ? "it has this one now" : "it stays as it is"}`;
}

async function send(files, label) {
  const body = new FormData();
  for (const file of files) body.append("image", file, file.name);
  if (label) body.append("label", label);
  if ($("add-update").checked) body.append("update", "true");
  try {
    return await ask("/items", { method: "POST", body, write: true });
  } catch (error) {
    if (error.status !== 422 || error.code?.startsWith("invalid_")) throw error;
    // A request of one image, or of bad ones only, is refused as a whole.
    return { new: 0, items: [], differing: [], refused: files.map((file) => ({ name: file.name, error })) };
  }
}

async function edit(item) {
  const label = await asked(item);
  if (label === null || label === (item.label || "")) return;
  try {
    const body = JSON.stringify({ label: label || null });
    const { label: kept } = await ask(`/items/${item.id}`, { method: "PATCH", body, headers: { "Content-Type": "application/json" }, write: true });
    const old = document.querySelector(`.card[data-id="${item.id}"]`)?.parentElement;
    const changed = card({ ...item, label: kept });
    old?.replaceWith(changed);
    changed.querySelector(".tool.edit").focus();
    complain("");
    $("note").textContent = kept ? `Item ${item.id} has the label ${kept} now` : `Item ${item.id} has no label now`;
    tell("changed");
    tell("edited");
  } catch (error) {
    complain(error.message);
  }
}

/** The label that the user has typed for an item; null where none was. */
function asked(item) {
  const dialog = $("edit");
  $("edit-title").textContent = `Label of item ${item.id}, ${item.source}`;
  $("edit-label").value = item.label || "";
  dialog.returnValue = "";
  dialog.showModal();
  const typed = () => (dialog.returnValue === "save" ? $("edit-label").value.trim() : null);
  return new Promise((done) => dialog.addEventListener("close", () => done(typed()), { once: true }));
}

async function remove(item) {
  const name = item.label || item.source;
  if (!(await confirmed(`Delete “${name}” (item ${item.id}, ${item.source}) from the gallery? This cannot be undone.`))) return;
  try {
    await ask(`/items/${item.id}`, { method: "DELETE", write: true });
  } catch (error) {
    if (error.status !== 404) return complain(error.message); // what is gone already is gone
  }
  complain("");
  const place = document.querySelector(`.card[data-id="${item.id}"]`)?.parentElement;
  const next = place?.nextElementSibling || place?.previousElementSibling;
  place?.remove();
  (next?.firstChild || $("results-title")).focus();
  $("note").textContent = `Deleted ${name}, item ${item.id}`;
  tell("changed");
}

function confirmed(question) {
  const dialog = $("confirm");
  $("confirm-question").textContent = question;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue === "yes"), { once: true }));
}

listen("delete", remove);
listen("edit", edit);
listen("keys", showRights);
$("write-key").addEventListener("click", () => request("write", "It is kept in this tab only, until you close it."));
$("write-forget").addEventListener("click", () => forget("write"));
$("forget").addEventListener("click", () => {
  forget("write");
  forget("read");
  location.assign(location.pathname); // nothing that was read with the key stays on the page
});
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
    $("add-note").textContent = "";
    complain(error.message);
  }
  $("add-submit").disabled = false;
  tell("changed");
});
showRights();
