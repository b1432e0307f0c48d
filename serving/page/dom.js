// Elements and the page's own events. Text is always set as text, so a label is never read as HTML.

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

/** Send an event to the other modules: "ask" {id} or {file}, "filtered", "keys", "changed", "found" [ids],
 * "edit" and "delete" item, "edited", "mark" {item, verdict}. */
export function tell(name, detail) {
  dispatchEvent(new CustomEvent(`zoo-${name}`, { detail }));
}

export function listen(name, heard) {
  addEventListener(`zoo-${name}`, (event) => heard(event.detail));
}

export function complain(message) {
  $("alert").textContent = message || "";
  $("alert").hidden = !message;
}

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
