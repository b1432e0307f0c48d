// The map of the gallery: pan, zoom, and search from its points.

import { ask } from "./api.js";
import { $, complain, counted, listen, percent, tell } from "./dom.js";
import { View, nearest, neighbour } from "./view.js";

const REACH = { mouse: 12, pen: 16, touch: 26 };
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const KEYS = { "+": () => view.zoomAt(1.5), "=": () => view.zoomAt(1.5), "-": () => view.zoomAt(1 / 1.5), 0: () => view.reset() };
const canvas = $("map-canvas");
const view = new View();
const fingers = new Map();
let points = [];
let places = [];
let hues = new Map(); // from a label to its position among all labels
let here = -1; // the selected point
let found = new Set(); // ids of the results
let asked = null; // the id of the query
let moved = 0; // pixels since a finger or the button was pressed

async function load() {
  $("map-status").textContent = "Drawing…";
  try {
    const { points: given, total, explained } = await ask("/map");
    points = given;
    view.fit(points);
    hues = new Map([...new Set(given.map(({ label }) => label))].sort().map((label, order) => [label, order]));
    here = -1;
    const shown = given.length < total ? `${given.length.toLocaleString()} of ${counted(total, "image")}` : counted(total, "image");
    $("map-status").textContent = `${shown}; images that the model finds alike are near each other. This plane shows ` +
      `${percent(explained[0] + explained[1])} of the variance.`;
    draw();
  } catch (error) {
    $("map-status").textContent = "";
    complain(error.message);
  }
}

function draw() {
  const { clientWidth: width, clientHeight: height } = canvas;
  if (!width) return;
  const dots = devicePixelRatio || 1;
  [canvas.width, canvas.height] = [width * dots, height * dots];
  view.resize(width, height);
  places = points.map((point) => view.place(point));
  const pen = canvas.getContext("2d");
  pen.scale(dots, dots);
  const radius = Math.min(7, 3 + Math.log2(view.zoom) + (points.length < 300 ? 2 : 0));
  points.forEach((point, i) => dot(pen, places[i], radius, colour(point.label), found.size && !found.has(point.id)));
  const ink = getComputedStyle(canvas).color;
  points.forEach((point, i) => point.id === asked && ring(pen, places[i], radius + 5, ink, 3));
  if (here >= 0) ring(pen, places[here], radius + 3, ink, 2);
  tip();
}

function dot(pen, [x, y], radius, fill, faint) {
  pen.globalAlpha = faint ? 0.3 : 0.9;
  pen.fillStyle = fill;
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  pen.fill();
  pen.globalAlpha = 1;
}

function ring(pen, [x, y], radius, ink, width) {
  pen.strokeStyle = ink;
  pen.lineWidth = width;
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  pen.stroke();
}

/** Return the colour of a label. Few labels get very different colours; the name of the label is always available too. */
function colour(label) {
  if (label === null) return "hsl(220 6% 55%)";
  const order = hues.get(label);
  return `hsl(${(250 + order * 137.5) % 360} 62% ${48 + 5 * (order % 3)}%)`;
}

function tip() {
  const shown = here >= 0;
  $("map-tip").hidden = !shown;
  if (!shown) return;
  const { id, label } = points[here];
  const [x, y] = places[here];
  if ($("map-tip").dataset.id !== `${id}`) {
    $("map-tip").dataset.id = id;
    $("map-picture").src = `items/${id}/thumbnail`;
    $("map-label").textContent = label ?? "no label";
  }
  const { offsetWidth: width, offsetHeight: height } = $("map-tip");
  const left = Math.min(Math.max(4, x - width / 2), view.width - width - 4);
  const top = y - height - 16 > 4 ? y - height - 16 : y + 16;
  $("map-tip").style.transform = `translate(${left}px, ${top}px)`;
}

function pointAt(next, aloud = false) {
  if (next === here) return;
  here = next;
  if (aloud && here >= 0) $("map-status").textContent = `${points[here].label ?? "no label"}, item ${points[here].id}. Press Enter to search from it.`;
  draw();
}

function search() {
  if (here >= 0) tell("ask", { id: points[here].id });
}

function pixel(event) {
  const area = canvas.getBoundingClientRect();
  return [event.clientX - area.left, event.clientY - area.top];
}

function spread() {
  const [[ax, ay], [bx, by]] = [...fingers.values()];
  return { far: Math.hypot(ax - bx, ay - by), middle: [(ax + bx) / 2, (ay + by) / 2] };
}

canvas.addEventListener("pointerdown", (event) => {
  if (!fingers.size) moved = 0;
  fingers.set(event.pointerId, pixel(event));
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointermove", (event) => {
  const to = pixel(event);
  const from = fingers.get(event.pointerId);
  if (!from) return pointAt(nearest(places, to, REACH.mouse));
  moved += Math.hypot(to[0] - from[0], to[1] - from[1]);
  const before = fingers.size === 2 && spread();
  fingers.set(event.pointerId, to);
  if (before) view.zoomAt(spread().far / Math.max(1, before.far), spread().middle);
  else view.pan(to[0] - from[0], to[1] - from[1]);
  draw();
});
canvas.addEventListener("pointerup", (event) => {
  const tapped = fingers.delete(event.pointerId) && moved < 6;
  if (!tapped) return;
  const before = here;
  pointAt(nearest(places, pixel(event), REACH[event.pointerType] || REACH.mouse), true);
  // A finger cannot hover, so its first tap shows the picture and the second one searches.
  if (event.pointerType !== "touch" || here === before) search();
});
canvas.addEventListener("pointercancel", (event) => fingers.delete(event.pointerId));
canvas.addEventListener("pointerleave", () => document.activeElement !== canvas && pointAt(-1));
canvas.addEventListener("wheel", (event) => {
  if (!event.ctrlKey && document.activeElement !== canvas) return; // let the page scroll
  event.preventDefault();
  view.zoomAt(Math.exp(-event.deltaY / 300), pixel(event));
  draw();
}, { passive: false });
canvas.addEventListener("keydown", (event) => {
  if (event.key === "Enter" || event.key === " ") search();
  else if (ARROWS[event.key] && points.length) walk(ARROWS[event.key]);
  else if (KEYS[event.key] && !event.ctrlKey && !event.metaKey) KEYS[event.key]();
  else return;
  event.preventDefault();
  draw();
});

function walk(direction) {
  const next = here < 0 ? nearest(places, [view.width / 2, view.height / 2]) : neighbour(places, here, direction);
  if (next < 0) return;
  view.reveal(points[next]);
  pointAt(next, true);
}

for (const [id, key] of [["map-in", "+"], ["map-out", "-"], ["map-reset", "0"]]) {
  $(id).addEventListener("click", () => {
    KEYS[key]();
    draw();
  });
}
listen("panel", (name) => name === "map" && load());
listen("changed", () => !$("map").hidden && load());
listen("query", (query) => {
  asked = query?.id ?? null;
});
listen("found", (ids) => {
  found = new Set(asked === null && !document.body.classList.contains("asked") ? [] : ids);
  if (!$("map").hidden) draw();
});
new ResizeObserver(draw).observe(canvas);
