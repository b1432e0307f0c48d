// Shows /openapi.json, as FastAPI writes it, as a page.

import { $, element } from "./dom.js";

const METHODS = ["get", "post", "put", "patch", "delete"];
const DEEPEST = 4; // levels of a schema that an outline shows
const { info = {}, servers, paths, components = {} } = await (await fetch("./openapi.json")).json();
const below = servers?.[0].url || ""; // the prefix of a collection's paths

/** Follow a reference, such as #/components/schemas/Hit, if there is one. */
function resolved(value = {}) {
  if (!value.$ref) return value;
  const steps = value.$ref.split("/").slice(1);
  return { ...resolved(steps.reduce((part, step) => part?.[step], { components })), ...value, $ref: undefined };
}

/** Return the schema's alternatives without null, which FastAPI adds to every optional value. */
function alternatives(schema) {
  const value = resolved(schema);
  const several = value.anyOf || value.oneOf || value.allOf;
  return several ? several.flatMap(alternatives).filter(({ type }) => type !== "null") : [value];
}

/** Describe a value: its type, its range or choices, and its default. */
function described(schema) {
  const all = alternatives(schema);
  const said = all.flatMap((one) => [outline(one, 1), ...limits(one)]);
  const fallback = resolved(schema).default;
  return [...new Set(said), ...(fallback === undefined || fallback === null ? [] : [`default ${JSON.stringify(fallback)}`])].join(", ");
}

function limits({ type, items, ...bounds }) {
  const low = bounds.minimum ?? bounds.exclusiveMinimum;
  const high = bounds.maximum ?? bounds.exclusiveMaximum;
  const words = [];
  if (low !== undefined && high !== undefined) words.push(`${low} to ${high}`);
  else if (low !== undefined) words.push(`from ${low}`);
  else if (high !== undefined) words.push(`up to ${high}`);
  if (bounds.maxLength !== undefined) words.push(`at most ${bounds.maxLength.toLocaleString()} characters`);
  if (type === "array" && bounds.maxItems !== undefined) words.push(`at most ${bounds.maxItems.toLocaleString()}`);
  return words;
}

/** Describe the shape of a value in one line, such as {id: integer, label: string or null}. */
function outline(schema, depth = 0) {
  const value = resolved(schema);
  const several = value.anyOf || value.oneOf || value.allOf;
  if (several) return [...new Set(several.map((one) => outline(one, depth)))].join(" or ");
  if (value.enum || "const" in value) return (value.enum || [value.const]).map((one) => JSON.stringify(one)).join(" or ");
  if (value.contentMediaType === "application/json") return "JSON";
  if (value.format === "binary" || value.contentMediaType) return "file";
  const types = [value.type ?? "anything"].flat().join(" or ");
  if (depth >= DEEPEST) return types;
  if (value.items) return `[${outline(value.items, depth + 1)}]`;
  if (!value.properties) return types;
  return `{${Object.entries(value.properties).map(([key, one]) => `${key}: ${outline(one, depth + 1)}`).join(", ")}}`;
}

/** Make a table that scrolls sideways if it is too wide, also by keyboard. */
function table(title, name, rows) {
  const body = rows.map(([first, ...rest]) =>
    element("tr", "", element("td", "", element("code", "", first)), ...rest.map((text) => element("td", "", text))));
  const wide = element("div", "wide", element("table", "", element("tbody", "", ...body)));
  wide.tabIndex = 0;
  wide.setAttribute("role", "region");
  wide.setAttribute("aria-label", `${title} of ${name}`);
  return [element("h3", "", title), wide];
}

/** Return the fields of a body by name, each with the content types that may carry it. */
function bodyFields(body) {
  const fields = new Map();
  for (const [kind, { schema }] of Object.entries(resolved(body).content || {})) {
    const properties = alternatives(schema).flatMap((one) => Object.entries(one.properties || {}));
    for (const [name, one] of properties.length ? properties : [[kind, schema]]) {
      const field = fields.get(name) || { type: described(one), text: resolved(one).description || "", kinds: new Set() };
      if (properties.length) field.kinds.add(kind === "application/json" ? "JSON" : "form");
      fields.set(name, field);
    }
  }
  return fields;
}

/** Describe an answer, with the shape of its JSON unless it is an error. */
function answer(status, given) {
  const { description, content } = resolved(given);
  const schema = content?.["application/json"]?.schema;
  const shape = status < 400 && schema && outline(schema);
  return [status, shape && shape !== "anything" ? `${description}: ${shape}` : description || ""];
}

function operation(path, method, what, shared = []) {
  const name = `${method.toUpperCase()} ${path}`;
  const made = element("section", "operation",
    element("h2", "", element("span", "method", method.toUpperCase()), " ", element("span", "path", path)),
    element("p", "", what.summary || ""));
  made.id = `${method}${path}`;
  if (what.description) made.append(...what.description.split(/\n\s*\n/).map((text) => element("p", "more", text)));
  const fields = bodyFields(what.requestBody);
  const asked = [...shared, ...(what.parameters || [])].map(resolved)
    .map((one) => [one.name, described(one.schema), one.description || fields.get(one.name)?.text || ""]);
  for (const [parameter] of asked) fields.delete(parameter); // a body may repeat the parameters
  if (asked.length) made.append(...table("Parameters", name, asked));
  const body = [...fields].map(([field, { type, text, kinds }]) => [field, type, [[...kinds].join(" or "), text].filter(Boolean).join(": ")]);
  if (body.length) made.append(...table("Body", name, body));
  made.append(...table("Answers", name, Object.entries(what.responses).map(([status, given]) => answer(status, given))));
  return made;
}

function link({ id, method, path, summary }) {
  const made = element("a", "", element("span", "method", method.toUpperCase()), " ", element("span", "path", path));
  made.href = `#${encodeURIComponent(id)}`;
  return element("li", "", made, element("span", "note", summary || ""));
}

const operations = Object.entries(paths).flatMap(([path, methods]) => METHODS.filter((method) => methods[method])
  .map((method) => ({ id: `${method}${below}${path}`, method, path: below + path, what: methods[method], shared: methods.parameters })));
$("description").textContent = info.description || "";
$("contents").append(...operations.map((one) => link({ ...one, summary: one.what.summary })));
$("operations").append(...operations.map(({ path, method, what, shared }) => operation(path, method, what, shared)));

const search = operations.find(({ path, method }) => method === "post" && path.endsWith("/search"));
const most = search?.what.parameters?.map(resolved).find(({ name }) => name === "k");
const k = Math.min(5, ...alternatives(most?.schema).map(({ maximum }) => maximum ?? 5));
const where = `${location.origin}${(search?.path || "/search").replace("{collection}", "NAME")}?k=${k}`;
$("example").textContent = `curl -F image=@picture.png '${where}'`;
