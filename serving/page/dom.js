// Elements, words, charts and the page's own events. Text is always set as text, so a label is never read as HTML.

export const $ = (id) => document.getElementById(id);

export function element(tag, className, ...content) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...content);
  return made;
}

export function button(className, text, onClick) {
  const made = element("button", className, text);
  made.type = "button";
  made.addEventListener("click", onClick);
  return made;
}

export function drawn(tag, attributes, ...content) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...content);
  return made;
}

/** Send an event to the other modules: "ask" {id} or {file}, "query", "filtered", "keys", "limits", "changed",
 * "found" [ids], "panel" name, "edit" and "delete" item, "edited", "mark" {item, verdict}. */
export function tell(name, detail) {
  dispatchEvent(new CustomEvent(`zoo-${name}`, { detail }));
}

export function listen(name, heard) {
  addEventListener(`zoo-${name}`, (event) => heard(event.detail));
}

/** Show an error; "" hides it. With `again`, a button repeats what failed. */
export function complain(message, again) {
  $("alert").replaceChildren(message || "", ...(message && again ? [button("small", "Try again", again)] : []));
  $("alert").hidden = !message;
}

/** Show a picture in its frame. The server reads more formats than browsers, so a picture may stay hidden. */
export function show(image, source) {
  const frame = image.parentElement;
  image.onload = () => {
    frame.classList.remove("unshown");
    image.classList.toggle("tiny", image.naturalWidth <= TINY && image.naturalHeight <= TINY);
  };
  image.onerror = () => frame.classList.add("unshown");
  image.src = source;
}

const TINY = 64; // pictures of at most this many pixels are enlarged without smoothing

/** Open a dialog; return its answer, the value of the pressed button, or "" after Escape. */
export function answer(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue), { once: true }));
}

/** Return the parts of a label in words: Birds/016.Painted_Bunting is ["Birds", "Painted Bunting"]. */
export function parts(label) {
  return label.split("/").map((part) => part.replace(/^\d+\.(?=\p{L})/u, "").replaceAll("_", " ").trim() || part);
}

export const words = (label) => (label ? parts(label).join(" / ") : "no label");

/** Return the name of an item in words: its label, or its file. */
export const nameOf = (item) => (item.label ? words(item.label) : item.source);

/** Return the text of a path or file name with places to break a line after / and _. */
export const breakable = (text) => text.split(/(?<=[/_])/).flatMap((part, i) => (i ? [element("wbr"), part] : [part]));

export function bytes(count) {
  if (count < 1024) return `${count} bytes`;
  return count < 2 ** 20 ? `${(count / 1024).toFixed(0)} kB` : `${(count / 2 ** 20).toFixed(1)} MB`;
}

export function counted(count, one, many = `${one}s`) {
  return `${count.toLocaleString()} ${count === 1 ? one : many}`;
}

export function percent(fraction) {
  if (fraction > 0.99 && fraction < 1) return "over 99 %";
  if (fraction > 0 && fraction < 0.01) return "under 1 %";
  return `${Math.round(100 * fraction)} %`;
}

const WIDE = 340;
const HIGH = 220;
const EDGE = { left: 48, right: 20, top: 12, bottom: 40 };
const STEPS = 120;

const across = (low) => (value) => EDGE.left + ((value - low) / (1 - low)) * (WIDE - EDGE.left - EDGE.right);
const up = (share) => HIGH - EDGE.bottom - share * (HIGH - EDGE.top - EDGE.bottom);

/** Draw the logistic curve of a calibration {slope, offset}, with a dot where "same" becomes the likelier answer. */
export function curve({ slope, offset }) {
  const half = -offset / slope;
  const low = Math.min(0, Math.floor(10 * (half - 4 / slope)) / 10) < -0.05 ? -1 : 0;
  const x = across(low);
  const chance = (similarity) => 1 / (1 + Math.exp(-(slope * similarity + offset)));
  const points = Array.from({ length: STEPS + 1 }, (_, i) => low + (i / STEPS) * (1 - low));
  const line = points.map((one) => `${x(one).toFixed(1)},${up(chance(one)).toFixed(1)}`).join(" ");
  const shapes = [drawn("polyline", { points: line, class: "line" })];
  if (half > low && half < 1) shapes.push(drawn("circle", { cx: x(half), cy: up(0.5), r: 4.5, class: "dot" }));
  const said = `The probability of the same class grows from ${percent(chance(low))} at similarity ${low} to ` +
    `${percent(chance(1))} at 1; it is one half at ${half.toFixed(2)}.`;
  return chart(said, "similarity", low, (value) => `${value}`, shapes);
}

/** Draw a reliability diagram of bins {probability, share, count}: good predictions are on the diagonal. */
export function reliability(bins) {
  const x = across(0);
  const most = Math.max(...bins.map(({ count }) => count));
  const dots = bins.map(({ probability, share, count }) => {
    const dot = drawn("circle", { cx: x(probability), cy: up(share), r: 3 + 5 * Math.sqrt(count / most), class: "dot" });
    dot.append(drawn("title", {}, `Predicted ${percent(probability)}, observed ${percent(share)} of ${counted(count, "pair")}`));
    return dot;
  });
  const even = drawn("line", { x1: x(0), y1: up(0), x2: x(1), y2: up(1), class: "even" });
  const said = bins.map((one) => `predicted ${percent(one.probability)}, observed ${percent(one.share)} of ${one.count} pairs`);
  const title = "predicted p_same (across) and observed share (up)";
  return chart(`Reliability: ${said.join("; ")}.`, title, 0, (value) => `${100 * value} %`, [even, ...dots]);
}

/** Draw shapes over axes: `low` to 1 across, with texts by `text`, and 0 to 100 % up. */
function chart(said, title, low, text, shapes) {
  const x = across(low);
  const rules = [0, 0.5, 1].flatMap((share) => [
    drawn("line", { x1: x(low), x2: x(1), y1: up(share), y2: up(share), class: "rule" }),
    drawn("text", { x: EDGE.left - 8, y: up(share) + 4, "text-anchor": "end" }, `${100 * share} %`),
  ]);
  const ticks = [low, (low + 1) / 2, 1].map((value) =>
    drawn("text", { x: x(value), y: HIGH - EDGE.bottom + 18, "text-anchor": "middle" }, text(value)));
  const name = drawn("text", { x: x((low + 1) / 2), y: HIGH - 4, "text-anchor": "middle" }, title);
  const frame = { viewBox: `0 0 ${WIDE} ${HIGH}`, class: "curve", role: "img", "aria-label": said };
  return drawn("svg", frame, ...rules, ...ticks, name, ...shapes);
}
