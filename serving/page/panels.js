// The panels above the search. Only one is open at a time.

import { tell } from "./dom.js";

const buttons = [...document.querySelectorAll("[data-panel]")];

function open(name) {
  for (const button of buttons) {
    const panel = document.getElementById(button.dataset.panel);
    const shown = button.dataset.panel === name;
    panel.hidden = !shown;
    button.setAttribute("aria-expanded", shown);
  }
  if (name) tell("panel", name);
}

for (const button of buttons) {
  button.addEventListener("click", () => {
    const opening = button.getAttribute("aria-expanded") !== "true";
    open(opening ? button.dataset.panel : null);
    if (opening) document.querySelector(`#${button.dataset.panel} h2`).focus({ preventScroll: true });
  });
}

for (const panel of document.querySelectorAll(".panel")) {
  panel.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    open(null);
    buttons.find((button) => button.dataset.panel === panel.id).focus();
  });
}
