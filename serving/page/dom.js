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

/** Send an event to the other modules: "ask" and "add" a part of a query, "query", "filtered", "keys", "limits", "changed",
 * "found" [ids], "panel" name, "edit" and "delete" item, "copies" id. */
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

const across = (low, high) => (value) => EDGE.left + ((value - low) / (high - low)) * (WIDE - EDGE.left - EDGE.right);
const up = (share) => HIGH - EDGE.bottom - share * (HIGH - EDGE.top - EDGE.bottom);

/** Draw the curve of a calibration {contrasts, probabilities}, with a dot where "same" becomes the likelier answer. */
export function curve({ contrasts, probabilities }) {
  const [low, high] = [contrasts[0], contrasts[contrasts.length - 1]];
  const x = across(low, high);
  const line = contrasts.map((one, i) => `${x(one).toFixed(1)},${up(probabilities[i]).toFixed(1)}`).join(" ");
  const shapes = [drawn("polyline", { points: line, class: "line" })];
  const after = probabilities.findIndex((chance) => chance >= 0.5);
  let half = "";
  if (after > 0) {
    const [from, to] = [probabilities[after - 1], probabilities[after]];
    const at = contrasts[after - 1] + ((0.5 - from) / (to - from)) * (contrasts[after] - contrasts[after - 1]);
    shapes.push(drawn("circle", { cx: x(at), cy: up(0.5), r: 4.5, class: "dot" }));
    half = `; it is one half at ${at.toFixed(2)}`;
  }
  const said = `The probability of the same class grows from ${percent(probabilities[0])} at a similarity of ` +
    `${low.toFixed(2)} above the query's background to ${percent(probabilities[probabilities.length - 1])} at ` +
    `${high.toFixed(2)}${half}.`;
  return chart(said, "similarity above the query's background", [low, high], (value) => value.toFixed(2), shapes);
}

/** Draw a reliability diagram of bins {probability, share, count}: good predictions are on the diagonal. */
export function reliability(bins) {
  const x = across(0, 1);
  const most = Math.max(...bins.map(({ count }) => count));
  const dots = bins.map(({ probability, share, count, low: bottom, high: top }) => {
    const dot = drawn("circle", { cx: x(probability), cy: up(share), r: 3 + 5 * Math.sqrt(count / most), class: "dot" });
    const range = `${percent(bottom)} to ${percent(top)}`;
    dot.append(drawn("title", {}, `Predicted ${percent(probability)}, observed ${percent(share)} (${range}) of ${counted(count, "pair")}`));
    return dot;
  });
  const even = drawn("line", { x1: x(0), y1: up(0), x2: x(1), y2: up(1), class: "even" });
  const said = bins.map((one) => `predicted ${percent(one.probability)}, observed ${percent(one.share)} of ${one.count} pairs`);
  const title = "predicted p_same (across) and observed share (up)";
  return chart(`Reliability: ${said.join("; ")}.`, title, [0, 1], (value) => `${100 * value} %`, [even, ...dots]);
}

/** Draw shapes over axes: `low` to `high` across, with texts by `text`, and 0 to 100 % up. */
function chart(said, title, [low, high], text, shapes) {
  const x = across(low, high);
  const rules = [0, 0.5, 1].flatMap((share) => [
    drawn("line", { x1: x(low), x2: x(high), y1: up(share), y2: up(share), class: "rule" }),
    drawn("text", { x: EDGE.left - 8, y: up(share) + 4, "text-anchor": "end" }, `${100 * share} %`),
  ]);
  const ticks = [low, (low + high) / 2, high].map((value) =>
    drawn("text", { x: x(value), y: HIGH - EDGE.bottom + 18, "text-anchor": "middle" }, text(value)));
  const name = drawn("text", { x: x((low + high) / 2), y: HIGH - 4, "text-anchor": "middle" }, title);
  const frame = { viewBox: `0 0 ${WIDE} ${HIGH}`, class: "curve", role: "img", "aria-label": said };
  return drawn("svg", frame, ...rules, ...ticks, name, ...shapes);
}
