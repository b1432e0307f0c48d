// The map of the gallery: pictures as landmarks, pan, zoom, and search from its points.

import { ask } from "./api.js";
import { $, complain, counted, listen, parts, tell, words } from "./dom.js";
import { only } from "./query.js";

// The visible part of the map. It converts positions on the map, -1 to 1 on both axes, to pixels and back.

const CLOSEST = 400; // largest zoom
const MARGIN = 54; // pixels around the points of the whole map: half of a picture, and its name below
const STRETCH = 1.6; // largest ratio of the scales of the two axes; only neighbourhoods count on this map

export class View {
  constructor() {
    this.resize(1, 1);
    this.fit([]);
    this.reset();
  }

  resize(width, height) {
    Object.assign(this, { width, height });
  }

  reset() {
    Object.assign(this, { x: 0, y: 0, zoom: 1 });
  }

  /** Fit the view to the points: store the largest |x| and |y|. */
  fit(points) {
    const farthest = (axis) => points.reduce((most, point) => Math.max(most, Math.abs(point[axis])), 1e-3);
    this.extent = [farthest("x"), farthest("y")];
  }

  /** Return pixels per unit of the map, across and down. */
  get units() {
    const inside = (length) => Math.max(1, length / 2 - MARGIN);
    const [right, down] = [inside(this.width) / this.extent[0], inside(this.height) / this.extent[1]];
    const most = STRETCH * Math.min(right, down);
    return [right, down].map((unit) => Math.min(unit, most) * this.zoom);
  }

  place({ x, y }) {
    const [right, down] = this.units;
    return [this.width / 2 + (x - this.x) * right, this.height / 2 - (y - this.y) * down];
  }

  pan(right, down) {
    const units = this.units;
    this.x -= right / units[0];
    this.y += down / units[1];
    this.stay();
  }

  /** Zoom by `factor` around a pixel. */
  zoomAt(factor, [px, py] = [this.width / 2, this.height / 2]) {
    const before = this.units;
    this.zoom = Math.min(CLOSEST, Math.max(1, this.zoom * factor));
    const after = this.units;
    this.x += (px - this.width / 2) * (1 / before[0] - 1 / after[0]);
    this.y -= (py - this.height / 2) * (1 / before[1] - 1 / after[1]);
    this.stay();
  }

  /** Pan as little as necessary to show the point inside the view. */
  reveal(point) {
    const [px, py] = this.place(point);
    const edge = 36;
    const out = (at, length) => Math.min(0, at - edge) || Math.max(0, at - length + edge);
    this.pan(-out(px, this.width), -out(py, this.height));
  }

  stay() {
    this.x = Math.min(1, Math.max(-1, this.x));
    this.y = Math.min(1, Math.max(-1, this.y));
  }
}

/** Return the index of the place nearest to a pixel, within `reach` pixels, or -1. */
function nearest(places, [px, py], reach = Infinity) {
  let best = -1;
  let least = reach ** 2;
  places.forEach(([x, y], i) => {
    const distance = (x - px) ** 2 + (y - py) ** 2;
    if (distance <= least) [best, least] = [i, distance];
  });
  return best;
}

/** Return the next place in a direction ([1, 0] is right, [0, 1] is down), or -1. */
function neighbour(places, from, [right, down]) {
  const [px, py] = places[from];
  let best = -1;
  let least = Infinity;
  places.forEach(([x, y], i) => {
    const ahead = (x - px) * right + (y - py) * down;
    const aside = Math.abs((x - px) * down) + Math.abs((y - py) * right);
    const cost = ahead + 2 * aside;
    if (i !== from && ahead > 0 && ahead >= aside && cost < least) [best, least] = [i, cost];
  });
  return best;
}

// What is shown.

export const view = new View();
const canvas = $("map-canvas");
let points = [];
let places = [];
let hues = new Map(); // from a label to its position among all labels
let here = -1; // the selected point
let found = new Set(); // ids of the results
let asked = null; // the id of the query
let medoids = []; // {label, index, count, spread} of the point in the middle of each label, in alphabetical order
export let landmarks = []; // {index, box, lines} of the pictures on the map

async function load() {
  $("map-status").textContent = "Drawing…";
  canvas.parentElement.classList.add("busy");
  try {
    const { points: given, total } = await ask("/map");
    points = given;
    here = -1;
    view.fit(points);
    medoids = middles();
    hues = new Map(medoids.map(({ label }, order) => [label, order]));
    describe(total);
    draw();
  } catch (error) {
    $("map-status").textContent = "";
    complain(error.message, load);
  }
  canvas.parentElement.classList.remove("busy");
}

function describe(total) {
  const shown = points.length < total ? `${points.length.toLocaleString()} of ${counted(total, "image")}` : counted(total, "image");
  const pictures = medoids.length ? ` Pictures mark ${medoids.length === 1 ? "the label" : "labels"}; zoom in to see more of them.` : "";
  $("map-status").textContent = total ? `${shown}; images that the model finds alike are near each other.${pictures}` : "The gallery is empty.";
}

/** Return the point of each label that is nearest to the median of the label's points. */
function middles() {
  const groups = new Map();
  for (const [i, { label }] of points.entries()) {
    if (label === null) continue;
    if (!groups.has(label)) groups.set(label, []);
    groups.get(label).push(i);
  }
  const rows = [...groups].map(([label, indices]) => {
    const middle = ["x", "y"].map((axis) => median(indices.map((i) => points[i][axis])));
    const own = indices.map((i) => [points[i].x, points[i].y]);
    const spread = median(own.map(([x, y]) => Math.hypot(x - middle[0], y - middle[1])));
    return { label, index: indices[nearest(own, middle)], count: indices.length, spread };
  });
  return rows.sort((a, b) => words(a.label).localeCompare(words(b.label)));
}

function median(values) {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
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
  const radius = Math.min(7, 3 + Math.log2(view.zoom) / 2 + (points.length < 300 ? 2 : 0));
  points.forEach((point, i) => dot(pen, places[i], radius, colour(point.label), isFaint(point)));
  const { color: ink, backgroundColor: paper } = getComputedStyle(canvas.parentElement);
  landmarks = chooseLandmarks(pen);
  for (const landmark of landmarks) drawLandmark(pen, landmark, ink, paper);
  points.forEach((point, i) => point.id === asked && ring(pen, places[i], radius + 5, ink, 3));
  if (here >= 0) ring(pen, places[here], radius + 3, ink, 2);
  tip();
}

const isFaint = ({ id }) => found.size > 0 && !found.has(id) && id !== asked;

function dot(pen, [x, y], radius, fill, faint) {
  pen.globalAlpha = faint ? 0.25 : 0.85;
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

// Landmarks: a picture of each label, with the last part of its name, wherever it covers no other one.

const SIDE = 46; // of a picture, in pixels
const NAME = 92; // width of a line of a name at most
const LINE = 13; // height of a line
const GAP = 6;
const CLOSE = 3; // from this zoom on, images other than the medoids are landmarks too
const FONT = "600 11.5px system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Noto Sans', sans-serif";
const pictures = new Map(); // from an item's id to its image

/** Return the landmarks that fit in the view: labels with the most points first, then those whose points are closest. */
function chooseLandmarks(pen) {
  pen.font = FONT;
  const ranked = [...medoids].sort((a, b) => b.count - a.count || a.spread - b.spread);
  const others = view.zoom >= CLOSE || !medoids.length ? points.map((_, index) => ({ index })) : [];
  const chosen = [];
  for (const { index, label } of [...ranked, ...others]) {
    const [x, y] = places[index];
    if (x < 0 || y < 0 || x > view.width || y > view.height) continue;
    const lines = label === undefined ? [] : inLines(pen, parts(label).at(-1));
    const wide = Math.max(SIDE, ...lines.map((line) => pen.measureText(line).width));
    const box = { left: x - wide / 2, right: x + wide / 2, top: y - SIDE / 2, bottom: y + SIDE / 2 + LINE * lines.length };
    if (!chosen.some((other) => overlap(box, other.box))) chosen.push({ index, box, lines });
  }
  return chosen;
}

function overlap(a, b) {
  return a.left < b.right + GAP && b.left < a.right + GAP && a.top < b.bottom + GAP && b.top < a.bottom + GAP;
}

/** Break a name after blanks and hyphens into at most two lines, and shorten what does not fit. */
function inLines(pen, name) {
  const fits = (text) => pen.measureText(text.trim()).width <= NAME;
  const lines = [];
  for (const word of name.split(/(?<=[ -])/)) {
    if (lines.length && fits(lines.at(-1) + word)) lines[lines.length - 1] += word;
    else lines.push(word);
  }
  if (lines.length > 2) lines[1] = `${lines[1].trim()}…`;
  return lines.slice(0, 2).map((line) => {
    let text = line.trim();
    while (text.length > 2 && !fits(text)) text = `${text.slice(0, -2)}…`;
    return text;
  });
}

function drawLandmark(pen, { index, lines }, ink, paper) {
  const point = points[index];
  const [x, y] = places[index];
  const image = pictureOf(point.id);
  pen.save();
  pen.globalAlpha = isFaint(point) ? 0.45 : 1;
  pen.beginPath();
  pen.roundRect(x - SIDE / 2, y - SIDE / 2, SIDE, SIDE, 9);
  pen.fillStyle = paper;
  pen.fill();
  pen.save();
  pen.clip();
  if (image) cover(pen, image, x - SIDE / 2, y - SIDE / 2);
  pen.restore();
  pen.strokeStyle = colour(point.label);
  pen.lineWidth = 2.5;
  pen.stroke();
  lines.forEach((line, i) => writeLine(pen, line, x, y + SIDE / 2 + LINE * (i + 1) - 1, ink, paper));
  pen.restore();
}

function writeLine(pen, text, x, y, ink, paper) {
  Object.assign(pen, { font: FONT, textAlign: "center", lineJoin: "round", lineWidth: 4, strokeStyle: paper, fillStyle: ink });
  pen.strokeText(text, x, y);
  pen.fillText(text, x, y);
}

/** Draw the middle square of an image. */
function cover(pen, image, left, top) {
  const side = Math.min(image.naturalWidth, image.naturalHeight);
  pen.drawImage(image, (image.naturalWidth - side) / 2, (image.naturalHeight - side) / 2, side, side, left, top, SIDE, SIDE);
}

/** Return the picture of an item; null until it is loaded, which draws the map again. */
function pictureOf(id) {
  if (!pictures.has(id)) {
    const image = new Image();
    image.onload = redrawSoon;
    image.src = `items/${id}/thumbnail`;
    pictures.set(id, image);
  }
  return pictures.get(id).naturalWidth ? pictures.get(id) : null;
}

let waiting = 0; // the request of the next frame

function redrawSoon() {
  waiting ||= requestAnimationFrame(() => {
    waiting = 0;
    draw();
  });
}

// The selected point, by mouse, finger and keyboard.

const REACH = { mouse: 12, pen: 16, touch: 26 };
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const KEYS = {
  "+": () => view.zoomAt(1.5, places[here]),
  "=": () => view.zoomAt(1.5, places[here]),
  "-": () => view.zoomAt(1 / 1.5, places[here]),
  0: () => view.reset(),
  PageDown: () => nextLabel(1),
  PageUp: () => nextLabel(-1),
};
const fingers = new Map();
let moved = 0; // pixels since a finger or the button was pressed

function tip() {
  const shown = here >= 0;
  $("map-tip").hidden = !shown;
  if (!shown) return;
  const { id, label } = points[here];
  const [x, y] = places[here];
  if ($("map-tip").dataset.id !== `${id}`) {
    $("map-tip").dataset.id = id;
    $("map-picture").src = `items/${id}/thumbnail`;
    $("map-label").textContent = words(label);
  }
  const { offsetWidth: width, offsetHeight: height } = $("map-tip");
  const left = Math.min(Math.max(4, x - width / 2), view.width - width - 4);
  const top = y - height - 16 > 4 ? y - height - 16 : y + 16;
  $("map-tip").style.transform = `translate(${left}px, ${Math.max(4, Math.min(top, view.height - height - 4))}px)`;
}

function pointAt(next, aloud = false) {
  if (next === here) return;
  here = next;
  if (aloud && here >= 0) $("map-status").textContent = `${words(points[here].label)}, item ${points[here].id}. Press Enter to search from it.`;
  draw();
}

/** Return the point at a pixel: that of a landmark, or the nearest one. */
function pointUnder([x, y], reach) {
  const hit = landmarks.find(({ box }) => x >= box.left && x <= box.right && y >= box.top && y <= box.bottom);
  return hit ? hit.index : nearest(places, [x, y], reach);
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

function walk(direction) {
  const next = here < 0 ? nearest(places, [view.width / 2, view.height / 2]) : neighbour(places, here, direction);
  if (next < 0) return;
  view.reveal(points[next]);
  pointAt(next, true);
}

/** Select the picture of the next label in alphabetical order. */
function nextLabel(by) {
  if (!medoids.length) return;
  const label = points[here]?.label;
  const from = medoids.findIndex((one) => one.label === label);
  const next = from < 0 && by < 0 ? medoids.length - 1 : (from + by + medoids.length) % medoids.length;
  view.reveal(points[medoids[next].index]);
  pointAt(medoids[next].index, true);
}

canvas.addEventListener("pointerdown", (event) => {
  if (!fingers.size) moved = 0;
  fingers.set(event.pointerId, pixel(event));
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointermove", (event) => {
  const to = pixel(event);
  const from = fingers.get(event.pointerId);
  if (!from) return pointAt(pointUnder(to, REACH.mouse));
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
  pointAt(pointUnder(pixel(event), REACH[event.pointerType] || REACH.mouse), true);
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

for (const [id, key] of [["map-in", "+"], ["map-out", "-"], ["map-reset", "0"]]) {
  $(id).addEventListener("click", () => {
    KEYS[key]();
    draw();
  });
}
listen("panel", (name) => name === "map" && load());
listen("changed", () => !$("map").hidden && load());
listen("query", (query) => {
  asked = only(query)?.id ?? null;
});
listen("found", (ids) => {
  found = new Set(asked === null && !document.body.classList.contains("asked") ? [] : ids);
  if (!$("map").hidden) draw();
});
new ResizeObserver(draw).observe(canvas);
