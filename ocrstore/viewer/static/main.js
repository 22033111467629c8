// Start the page: load the store's facts, follow the URL, handle keys.

import * as api from "./api.js";
import { bytes, count, find, make, share } from "./dom.js";
import { Counts } from "./counts.js";
import { FilterBox } from "./filter.js";
import { Grid } from "./grid.js";
import { fillHelp, toggleHelp } from "./help.js";
import { Pages } from "./pages.js";
import { current, go, onRoute, query } from "./route.js";
import { SampleView } from "./sample.js";
import { load, save } from "./settings.js";
import { Watch } from "./watch.js";

// the token came with the address once; from here on a cookie carries it
if (location.search) history.replaceState(null, "", location.pathname + location.hash);

const pages = new Pages();
const grid = new Grid(pages);
const sample = new SampleView(pages);
const filter = new FilterBox();
const counts = new Counts();
const watch = new Watch((news) => start(news));
let facts = null;
let asked = null;
let failed = false;

async function start(news) {
  const first = facts === null;
  try {
    facts = news ?? (await api.get("/api/store"));
  } catch (error) {
    empty("The store cannot be shown.", error.message);
    return;
  }
  document.title = `${facts.name} · ocrstore`;
  find("name").textContent = facts.name;
  find("name").title = facts.path;
  find("summary").textContent = describe(facts);
  filter.setFields(facts.fields);
  fillSort(facts);
  fillHelp(facts);
  watch.setState(facts.state);
  sample.setStore(facts);
  grid.outlines = load("outlines", true);
  find("outlines").setAttribute("aria-pressed", grid.outlines);
  if (first && facts.predictions.length && !current().sort && !current().filter) {
    go({ sort: "hmean" }, { replace: true }); // the worst first
  }
  await show({ anew: true });
}

function describe(store) {
  const parts = [`${count(store.samples)} ${store.samples === 1 ? "sample" : "samples"}`];
  if (store.polygons !== undefined) parts.push(`${count(store.polygons)} polygons`);
  parts.push(bytes(store.nbytes));
  for (const found of store.predictions) {
    const name = store.predictions.length > 1 ? `${found.name} ` : "";
    parts.push(`${name}H-mean ${share(found.hmean)} (P ${share(found.precision)}, R ${share(found.recall)})`);
  }
  return parts.join(" · ");
}

async function show({ anew = false } = {}) {
  const route = current();
  const wanted = JSON.stringify([route.filter, route.sort, route.descending]);
  if (anew || failed || wanted !== asked) {
    asked = wanted;
    failed = false;
    filter.show(route);
    showOrder(route);
    const loading = ask(wanted);
    if (route.key === null) await loading;
    else await Promise.all([loading, sample.show(route.key, { anew })]);
    sample.refreshPosition();
  }
  if (asked !== wanted) return;
  if (route.key !== null) await sample.show(route.key);
  else if (sample.isOpen) {
    const position = sample.position;
    sample.hide();
    grid.layout();
    if (position !== null) grid.show(position);
  }
}

async function ask(wanted) {
  find("grid").classList.add("busy");
  try {
    await pages.reset();
    if (asked !== wanted) return;
    filter.error(null);
    filter.matches(pages, facts.samples);
    find("keys").href = api.keysUrl(query());
    counts.show(current());
    if (pages.total) empty(null);
    else if (!facts.samples) empty("This store has no samples.", "Append some, and this page will tell you.");
    else if (pages.sql) empty("No sample fulfils this SQL condition.", current().filter);
    else empty("No sample has these words in its key or texts.", `${current().filter} — press ? for how to filter by SQL.`);
  } catch (error) {
    if (error.name === "AbortError" || asked !== wanted) return;
    failed = true;
    pages.total = 0;
    filter.matches(null);
    if (error.kind === "filter") {
      filter.error(error);
      empty("This filter did not work.", "The note below the search box says why.");
    } else if (error.kind === "busy") empty("The viewer is busy.", error.message);
    else empty("The samples cannot be listed.", error.message);
  } finally {
    if (asked === wanted) {
      find("grid").classList.remove("busy");
      grid.refresh({ top: true });
    }
  }
}

function empty(title, text) {
  const place = find("empty");
  place.hidden = title === null;
  if (title !== null) place.replaceChildren(make("h2", {}, title), make("p", { class: "soft" }, text));
}

// ---- order, outlines, size, light and dark ----

function fillSort(store) {
  const options = [make("option", { value: "" }, "stored order")];
  for (const { name, sortable } of store.fields) {
    if (sortable && name !== "row") options.push(make("option", { value: name }, name));
  }
  find("sort").replaceChildren(...options);
}

function showOrder(route) {
  find("sort").value = route.sort;
  if (find("sort").selectedIndex < 0) find("sort").value = "";
  const direction = find("direction");
  direction.disabled = !route.sort;
  direction.classList.toggle("down", route.descending);
  direction.setAttribute("aria-label", route.descending ? "Descending" : "Ascending");
}

find("sort").addEventListener("change", () => {
  const sort = find("sort").value;
  go({ sort, descending: sort ? current().descending : false });
});
find("direction").addEventListener("click", () => go({ descending: !current().descending }));

function toggleOutlines() {
  grid.outlines = !grid.outlines;
  save("outlines", grid.outlines);
  find("outlines").setAttribute("aria-pressed", grid.outlines);
  grid.refresh();
}
find("outlines").addEventListener("click", toggleOutlines);
find("counts-open").addEventListener("click", () => counts.toggle());

const size = find("size");
size.value = load("size", matchMedia("(max-width: 600px)").matches ? 150 : 220);
grid.setSize(Number(size.value));
size.addEventListener("input", () => grid.setSize(Number(size.value)));
size.addEventListener("change", () => {
  save("size", Number(size.value));
  grid.refresh(); // thumbnails as fine as the tiles now are
});

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}
setTheme(load("theme", ""));
find("theme").addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const shown = document.documentElement.dataset.theme || (dark ? "dark" : "light");
  const next = shown === "dark" ? "light" : "dark";
  setTheme(next);
  save("theme", next);
});
find("help-open").addEventListener("click", toggleHelp);

// ---- keys ----

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || find("help").open) return;
  const inField = event.target.closest("input[type=text], select, textarea");
  if (inField) return;
  if (event.target.closest("input[type=range]") && event.key.startsWith("Arrow")) return;
  let done = true;
  if (event.key === "?") toggleHelp();
  else if (sample.isOpen) done = sample.key(event);
  else if (event.key === "/") filter.focus();
  else if (event.key === "o") toggleOutlines();
  else if (event.key === "g") counts.toggle();
  else done = grid.key(event);
  if (done) event.preventDefault();
});

onRoute(() => show());
start();
