// Changing an item's label and deleting it, with a write key.

import { ask } from "./api.js";
import { card } from "./cards.js";
import { $, complain, listen, tell } from "./dom.js";
import { forget, held, request } from "./keys.js";

function showRights() {
  const may = Boolean(held("write"));
  document.body.classList.toggle("may-write", may);
  $("write-key").hidden = may;
  $("add-form").hidden = $("write-forget").hidden = !may;
  $("forget").hidden = !may && !held("read");
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
    $("note").textContent = kept ? `Item ${item.id} now has the label ${kept}` : `Item ${item.id} now has no label`;
    tell("changed");
    tell("edited");
  } catch (error) {
    complain(error.message);
  }
}

/** Ask for a label of an item; null if the user cancels. */
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
    if (error.status !== 404) return complain(error.message); // 404: somebody else deleted it
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
$("write-key").addEventListener("click", () => request("write", "This tab keeps it until you close the tab."));
$("write-forget").addEventListener("click", () => forget("write"));
$("forget").addEventListener("click", () => {
  forget("write");
  forget("read");
  location.assign(location.pathname); // clear everything that was read with the key
});
showRights();
