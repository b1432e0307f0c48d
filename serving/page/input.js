// Query images: dropped, pasted, chosen, or taken by the camera.

import { $, complain } from "./dom.js";
import { take } from "./query.js";

let depth = 0; // number of nested elements under a dragged file

function firstFile(transfer) {
  return [...(transfer?.files || [])][0];
}

function carriesFiles(event) {
  return [...(event.dataTransfer?.types || [])].includes("Files");
}

addEventListener("dragenter", (event) => {
  if (carriesFiles(event)) $("overlay").hidden = ++depth === 0;
});
addEventListener("dragleave", (event) => {
  if (carriesFiles(event)) $("overlay").hidden = --depth <= 0;
});
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  depth = 0;
  $("overlay").hidden = true;
  const file = firstFile(event.dataTransfer);
  if (file) take(file);
  else complain("That is not a file. Drop an image file, or paste an image.");
});
addEventListener("paste", (event) => {
  if (event.target.closest?.("input:not([type=file])")) return; // the text belongs to that field
  const file = firstFile(event.clipboardData);
  if (file) take(file);
  else complain("The clipboard has no image.");
});
for (const id of ["file", "camera"]) {
  $(id).addEventListener("change", (event) => {
    take(event.target.files[0]);
    event.target.value = ""; // so that choosing the same file again is an event
  });
}
