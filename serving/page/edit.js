// Adding images and deleting an item, with a write key.

import { ask } from "./api.js";
import { $, complain, counted, element, tell } from "./dom.js";
import { forget, held, request } from "./keys.js";
import { presentItems } from "./results.js";

const AT_ONCE = 4; // images a request: progress is seen, and no request grows too large

function showRights() {
  const may = Boolean(held("write"));
  document.body.classList.toggle("may-write", may);
  $("write-key").hidden = may;
  $("add-form").hidden = $("write-forget").hidden = !may;
}

async function add(files, label) {
  const items = [];
  const refused = [];
  let fresh = 0;
  for (let start = 0; start < files.length; start += AT_ONCE) {
    $("add-note").textContent = `${start} of ${files.length} sent`;
    const answer = await send(files.slice(start, start + AT_ONCE), label);
    items.push(...answer.items);
    refused.push(...answer.refused);
    fresh += answer.new;
  }
  const known = items.length - fresh;
  const parts = [`${counted(fresh, "image")} added`, known && `${known} there already`, refused.length && `${refused.length} refused`];
  $("add-note").textContent = parts.filter(Boolean).join(", ");
  $("add-refused").replaceChildren(...refused.map(({ name, error }) => element("li", "", `${name}: ${error.message}`)));
  if (items.length) presentItems("Added", "Click one to search from it", items);
}

async function send(files, label) {
  const body = new FormData();
  for (const file of files) body.append("image", file, file.name);
  if (label) body.append("label", label);
  try {
    return await ask("/items", { method: "POST", body, write: true });
  } catch (error) {
    if (error.status !== 422 || error.code?.startsWith("invalid_")) throw error;
    // A request of one image, or of bad ones only, is refused as a whole.
    return { new: 0, items: [], refused: files.map((file) => ({ name: file.name, error })) };
  }
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

addEventListener("zoo-delete", (event) => remove(event.detail));
addEventListener("zoo-keys", showRights);
$("write-key").addEventListener("click", () => request("write", "It is kept in this tab only, until you close it."));
$("write-forget").addEventListener("click", () => forget("write"));
$("add-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("add-submit").disabled = true;
  $("add-refused").replaceChildren();
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
