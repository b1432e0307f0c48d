// A card for an item of the gallery: its picture, label and similarity.

import { button, element, percent, tell } from "./dom.js";

const TINY = 64; // pictures of at most this many pixels are enlarged without smoothing

export function show(image, source) {
  const frame = image.parentElement;
  image.onload = () => {
    frame.classList.remove("unshown");
    image.classList.toggle("tiny", image.naturalWidth <= TINY && image.naturalHeight <= TINY);
  };
  image.onerror = () => frame.classList.add("unshown"); // the server reads more formats than browsers
  image.src = source;
}

export function card(item) {
  const words = element("div", "words", named(item.label));
  let spoken = item.label || item.source;
  if (item.similarity !== undefined) {
    words.append(likeness(item));
    spoken += `, similarity ${item.similarity.toFixed(3)}`;
  }
  if (typeof item.p_same === "number") spoken += `, ${percent(item.p_same)} likely the same class`;
  const made = button("card", "", () => tell("ask", { id: item.id }));
  made.dataset.id = item.id;
  made.title = item.source;
  made.setAttribute("aria-label", `${spoken}. Search from this image`);
  made.replaceChildren(picture(item.thumbnail), words);
  const place = element("li", "", made, tool("edit", "Edit", item), tool("remove", "Delete", item));
  if (item.similarity !== undefined) place.append(marking(item));
  return place;
}

/** Make a button for an action that needs a write key. */
function tool(name, text, item) {
  const made = button(`tool ${name}`, text, () => tell(text.toLowerCase(), item));
  made.setAttribute("aria-label", `${text} ${item.label || item.source}, item ${item.id}`);
  return made;
}

function marking(item) {
  const choices = Object.entries({ right: "Right", wrong: "Wrong" }).map(([verdict, text]) => {
    const made = button("mark", text, () => tell("mark", { item, verdict }));
    Object.assign(made.dataset, { item: item.id, verdict });
    made.setAttribute("aria-pressed", false);
    made.setAttribute("aria-label", `${text}: ${item.label || item.source}, item ${item.id}`);
    return made;
  });
  const made = element("div", "marking", ...choices);
  made.setAttribute("role", "group");
  made.setAttribute("aria-label", "Does it have the query's class?");
  return made;
}

/** Show a label; for one with folders, such as Greek/alpha, emphasise the last part. */
export function named(label) {
  if (!label) return element("span", "label none", "no label");
  const parts = label.split("/");
  const name = element("span", "label", parts.pop());
  if (!parts.length) return name;
  return element("div", "nested", element("span", "folder", parts.join(" / ")), name);
}

function picture(source) {
  const image = element("img");
  image.alt = "";
  image.loading = "lazy";
  const frame = element("div", "frame", image);
  show(image, source);
  return frame;
}

function likeness({ similarity, p_same: chance }) {
  const fill = element("span", "fill");
  fill.style.width = `${Math.max(0, similarity) * 100}%`;
  const row = element("div", "likeness", element("span", "track", fill), element("span", "", similarity.toFixed(3)));
  if (typeof chance !== "number") return row;
  const said = element("div", "chance", `${percent(chance)} same class`);
  said.title = "The probability that it has the query's class (p_same)";
  return element("div", "both", row, said);
}
