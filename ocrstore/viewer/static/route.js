// The state of the page in the URL: sample, filter, order.

const listeners = new Set();

export function parse(hash) {
  const text = hash.startsWith("#") ? hash.slice(1) : hash;
  const [path, query = ""] = split(text);
  const given = new URLSearchParams(query);
  const found = path.match(/^\/sample\/(.+)$/);
  return {
    key: found ? decode(found[1]) : null,
    filter: given.get("filter") ?? "",
    sort: given.get("sort") ?? "",
    descending: given.get("descending") === "1",
  };
}

export function format(route) {
  const query = new URLSearchParams();
  if (route.filter) query.set("filter", route.filter);
  if (route.sort) query.set("sort", route.sort);
  if (route.descending) query.set("descending", "1");
  const path = route.key === null ? "/" : `/sample/${encodeURIComponent(route.key)}`;
  const text = query.toString();
  return `#${path}${text ? `?${text}` : ""}`;
}

function split(text) {
  const at = text.indexOf("?");
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)];
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export const current = () => parse(location.hash);

export function query(route = current()) {
  const parameters = {};
  if (route.filter) parameters.filter = route.filter;
  if (route.sort) parameters.sort = route.sort;
  if (route.descending) parameters.descending = "1";
  return parameters;
}

export function go(changes, { replace = false } = {}) {
  const next = format({ ...current(), ...changes });
  if (next === location.hash) {
    tell(); // the same again: a query that failed is asked once more
    return;
  }
  if (replace) history.replaceState(history.state, "", next);
  else history.pushState({ opened: Boolean(changes.key) }, "", next);
  tell();
}

export function onRoute(listener) {
  listeners.add(listener);
}

function tell() {
  const route = current();
  for (const listener of listeners) listener(route);
}

addEventListener("popstate", tell);
