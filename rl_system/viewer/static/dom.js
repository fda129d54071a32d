// Elements. What comes from a run becomes text nodes and attributes of a fixed list; nothing here parses HTML.

const ATTRIBUTES = new Set([
  "class", "href", "id", "type", "name", "value", "for", "scope", "role", "tabindex", "title", "colspan", "open", "placeholder",
  "min", "max", "step", "list", "selected", "width", "height", "viewBox", "x", "y", "d", "fill", "checked", "disabled", "dir",
]);

export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (ATTRIBUTES.has(name) || name.startsWith("aria-") || name.startsWith("data-")) element.setAttribute(name, value === true ? "" : value);
    else throw new Error(`no attribute ${name}`);
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

export function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(digits)).toString();
}

export function share(value) {
  return value === null || value === undefined ? "–" : `${Math.round(value * 100)}%`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 120) return `${number(seconds, 2)} s`;
  return seconds < 7200 ? `${number(seconds / 60, 3)} min` : `${number(seconds / 3600, 3)} h`;
}

export function ago(at) {
  return at === null || at === undefined ? "–" : `${duration(Math.max(0, Math.round(Date.now() / 1000 - at)))} ago`;
}

/** The policy versions of an episode, [lowest, highest]. */
export function versions(range) {
  return range === null || range === undefined ? "–" : range[0] === range[1] ? String(range[0]) : `${range[0]}–${range[1]}`;
}

/** A table. columns: [title, cell of a row, "number" for figures]. A row with an address can be opened with Enter. */
export function table(caption, columns, rows, address = () => null) {
  const head = h("tr", {}, columns.map(([title, , kind]) => h("th", { scope: "col", class: kind }, title)));
  const body = rows.map((row) => {
    const href = address(row);
    const cells = columns.map(([, cell, kind], position) => {
      const content = cell(row);
      return h("td", { class: kind }, position === 0 && href ? h("a", { href, class: "row" }, content) : content);
    });
    return h("tr", {}, cells);
  });
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, h("table", {},
    h("caption", {}, caption), h("thead", {}, head), h("tbody", {}, body)));
}

export function reward(value) {
  const kind = value === null || value === undefined ? "" : value >= 1 - 1e-6 ? "good" : value > 0 ? "middling" : "bad";
  return h("span", { class: `reward ${kind}` }, number(value));
}
