// Shows /openapi.json as a page.

const $ = (id) => document.getElementById(id);

function element(tag, className, ...content) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...content);
  return made;
}

/** Make a table that scrolls sideways if it is too wide, also by keyboard. */
function table(name, rows) {
  const body = rows.map(([first, ...rest]) =>
    element("tr", "", element("td", "", element("code", "", first)), ...rest.map((text) => element("td", "", text))));
  const wide = element("div", "wide", element("table", "", element("tbody", "", ...body)));
  wide.tabIndex = 0;
  wide.setAttribute("role", "region");
  wide.setAttribute("aria-label", name);
  return wide;
}

function range({ type, minimum, maximum, default: fallback }) {
  const words = [type];
  if (minimum !== undefined) words.push(maximum === undefined ? `from ${minimum}` : `${minimum} to ${maximum}`);
  if (fallback !== undefined) words.push(`default ${fallback}`);
  return words.join(", ");
}

function shape(response, schemas) {
  const name = response.content?.["application/json"]?.schema?.$ref?.split("/").pop();
  return name && name !== "Refusal" ? `${response.description}: ${outline(schemas[name], schemas)}` : response.description;
}

function outline(schema, schemas) {
  if (schema.$ref) return outline(schemas[schema.$ref.split("/").pop()], schemas);
  if (schema.type === "array") return `[${outline(schema.items, schemas)}]`;
  if (!schema.properties) return [schema.type || (schema.enum ? "text" : "anything")].flat().join(" or ");
  return `{${Object.entries(schema.properties).map(([key, value]) => `${key}: ${outline(value, schemas)}`).join(", ")}}`;
}

function operation(path, method, what, schemas) {
  const made = element("section", "operation",
    element("h2", "", element("span", "method", method.toUpperCase()), element("span", "path", path)),
    element("p", "", what.summary));
  if (what.description) made.append(element("p", "more", what.description));
  const asked = (what.parameters || []).map((p) => [p.name, range(p.schema), p.description || ""]);
  if (asked.length) made.append(table(`Parameters of ${method} ${path}`, asked));
  const answers = Object.entries(what.responses).map(([status, response]) => [status, shape(response, schemas)]);
  made.append(table(`Answers of ${method} ${path}`, answers));
  return made;
}

const { info, servers, paths, components } = await (await fetch("./openapi.json")).json();
const below = servers?.[0].url || ""; // the prefix of a collection's paths
$("description").textContent = info.description;
const search = paths["/search"] || paths["/collections/{collection}/search"];
const most = search.post.parameters.find(({ name }) => name === "k").schema.maximum;
const where = `${location.origin}${paths["/search"] ? below : "/collections/NAME"}/search?k=${Math.min(5, most)}`;
$("example").textContent = `curl -F image=@picture.png '${where}'`;
$("operations").append(...Object.entries(paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, what]) => operation(below + path, method, what, components.schemas))));
