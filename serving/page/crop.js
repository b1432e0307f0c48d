// The region of the query image to search with: dragged, or typed in percent.

import { $, element, tell } from "./dom.js";

const SIDES = ["left", "top", "right", "bottom"];
const LEAST = 0.02; // of a side; a smaller drag is a click
let query = null;
let start = null; // start of the drag, as fractions of the sides

/** Offer to crop the query. An item cannot be cropped, because the page has only its thumbnail. */
export function offer(next) {
  query = next;
  $("crop-open").hidden = !query?.file;
  close();
  if (!query?.file) return;
  $("crop-image").src = query.url;
  fillIn(query.crop || [0, 0, 1, 1]);
  note();
}

function open() {
  $("crop").hidden = !$("crop").hidden;
  $("crop-open").setAttribute("aria-expanded", !$("crop").hidden);
  if (!$("crop").hidden) $("crop-left").focus({ preventScroll: true });
}

function close() {
  $("crop").hidden = true;
  $("crop-open").setAttribute("aria-expanded", "false");
}

function typed() {
  return SIDES.map((side) => Math.min(100, Math.max(0, Number($(`crop-${side}`).value))) / 100);
}

function fillIn(box) {
  SIDES.forEach((side, i) => ($(`crop-${side}`).value = Math.round(1000 * box[i]) / 10));
  outline();
}

function outline() {
  const [left, top, right, bottom] = typed();
  const part = $("crop-box").style;
  [part.left, part.top] = [`${100 * left}%`, `${100 * top}%`];
  [part.width, part.height] = [`${100 * Math.max(0, right - left)}%`, `${100 * Math.max(0, bottom - top)}%`];
  const right_way = left < right && top < bottom;
  $("crop-right").setCustomValidity(left < right ? "" : "The right side must be to the right of the left side.");
  $("crop-bottom").setCustomValidity(top < bottom ? "" : "The bottom must be below the top.");
  $("crop-box").hidden = !right_way;
}

function place(event) {
  const area = $("crop-stage").getBoundingClientRect();
  const inside = (value) => Math.min(1, Math.max(0, value));
  return [inside((event.clientX - area.left) / area.width), inside((event.clientY - area.top) / area.height)];
}

function drag(event) {
  if (!start) return;
  const [x, y] = place(event);
  const box = [Math.min(x, start[0]), Math.min(y, start[1]), Math.max(x, start[0]), Math.max(y, start[1])];
  if (box[2] - box[0] >= LEAST && box[3] - box[1] >= LEAST) fillIn(box);
}

function use(box) {
  query.crop = box.join() === "0,0,1,1" ? null : box.map((side) => Math.round(1000 * side) / 1000);
  note();
  tell("filtered");
}

function note() {
  const [left, top, right, bottom] = (query.crop || []).map((side) => `${Math.round(100 * side)}`);
  const region = element("span", "", `Region: ${left} to ${right} % across, ${top} to ${bottom} % down`);
  $("crop-note").replaceChildren(...(query.crop ? [region] : []));
}

$("crop-open").addEventListener("click", open);
$("crop-stage").addEventListener("pointerdown", (event) => {
  event.preventDefault();
  start = place(event);
  $("crop-stage").setPointerCapture(event.pointerId);
});
$("crop-stage").addEventListener("pointermove", drag);
for (const end of ["pointerup", "pointercancel"]) $("crop-stage").addEventListener(end, () => (start = null));
for (const side of SIDES) $(`crop-${side}`).addEventListener("input", outline);
$("crop-form").addEventListener("submit", (event) => {
  event.preventDefault();
  use(typed());
});
$("crop-whole").addEventListener("click", () => {
  fillIn([0, 0, 1, 1]);
  use([0, 0, 1, 1]);
});
