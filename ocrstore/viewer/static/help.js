// The page of keys and filters.

import { find, make } from "./dom.js";

const KEYS = [
  ["Grid", [["← → ↑ ↓", "move"], ["j k", "next, previous"], ["Enter", "open"], ["/", "filter"], ["o", "outlines"], ["g", "histogram"]]],
  ["Sample", [["← → or j k", "previous, next"], ["+ − 0 1", "zoom, fit, one to one"], ["Shift + arrows", "move the picture"], ["b", "original or baked"], ["c", "compare the two"], ["s", "tag as selected, or not"], ["Esc", "back to the grid"]]],
  ["Layers", [["p i t", "polygons, ignored, texts"], ["d", "predictions"], ["m h", "probability, threshold map"], ["x y", "their masks"]]],
];
const FILTERS = [
  ["img_1 total", "words: each is in the key or a text, upper and lower case alike"],
  ['"grand total"', "double quotes keep words together"],
  ["width > 1000 AND polygons_count >= 5", "SQL: numbers"],
  ["key LIKE 'img_1%' OR list_contains(texts, 'TOTAL')", "SQL: a pattern; an entry of a list"],
  ["NOT annotated", "SQL: true or false"],
  ["list_contains(tags, 'selected')", "SQL: samples that were tagged with s"],
  ["hmean < 0.5", "SQL, with predictions; hmean_2 for the second set"],
];

export function fillHelp(facts) {
  const columns = KEYS.map(([title, rows]) => {
    const list = make("dl", {});
    for (const [key, what] of rows) list.append(make("dt", {}, make("kbd", {}, key)), make("dd", {}, what));
    return make("section", {}, make("h3", {}, title), list);
  });
  const filters = make("dl", { class: "filters" });
  for (const [text, what] of FILTERS) {
    filters.append(make("dt", {}, make("code", {}, text)), make("dd", {}, what));
  }
  const names = make("p", { class: "names" });
  for (const { name, kind } of facts.fields) names.append(make("code", { title: kind }, name), " ");
  const rule =
    "A filter is SQL if it contains = < > or ( outside of double quotes, or begins with the name of a field " +
    "(also after NOT). Everything else is words. SQL is what follows WHERE, in the dialect of duckdb.";
  find("help").replaceChildren(
    make(
      "form",
      { method: "dialog" },
      make("header", {}, make("h2", {}, "Keys and filters"), make("button", { class: "button icon", "aria-label": "Close" }, "×")),
      make("div", { class: "columns" }, ...columns),
      make("h3", {}, "Filters"),
      filters,
      make("p", { class: "soft" }, rule),
      make("h3", {}, "Fields"),
      names,
    ),
  );
}

export function toggleHelp() {
  const help = find("help");
  if (help.open) help.close();
  else help.showModal();
}
