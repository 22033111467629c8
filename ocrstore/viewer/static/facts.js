// The facts about one sample: scores, polygons, attributes, columns.

import { bytes, count, make, share } from "./dom.js";

const TIMES = /_ns$/;

export function facts(sample, { names, set, onHover, onPick }) {
  const parts = [];
  sample.predictions.forEach((found, index) => {
    if (found) parts.push(scores(found, names.length > 1 ? names[index] : "Predictions"));
  });
  if (sample.problems?.length) parts.push(problems(sample.problems));
  if (sample.polygons.length) parts.push(regions(sample, set, onHover, onPick));
  parts.push(section("Attributes", table(attributes(sample))));
  parts.push(section("Columns", columns(sample.columns)));
  return parts;
}

function section(title, ...content) {
  return make("section", {}, make("h3", {}, title), ...content);
}

function table(rows) {
  const list = make("dl", {});
  for (const [name, value] of rows) {
    list.append(make("dt", {}, name), make("dd", { title: value }, value));
  }
  return list;
}

function attributes(sample) {
  const rows = [["row", count(sample.row)]];
  if (sample.size) rows.push(["picture", `${sample.size[1]} × ${sample.size[0]}`]);
  if (sample.unusable) rows.push(["not shown", `${count(sample.unusable)} polygons without three points of numbers`]);
  for (const view of sample.views) {
    rows.push([`view ${view.name}`, `${view.size[1]} × ${view.size[0]}${scale(view)}`]);
  }
  for (const [name, value] of Object.entries(sample.attributes)) {
    if (name === "width" || name === "height") continue;
    rows.push([name, show(name, value)]);
  }
  return rows;
}

function scale(view) {
  if (!view.forward) return "";
  const [a, b, , d, e] = view.forward;
  return ` at ${Math.sqrt(Math.abs(a * e - b * d)).toPrecision(3)}×`;
}

function show(name, value) {
  if (value === null || value === undefined) return "–";
  const whole = /^-?\d+$/.test(String(value)) ? BigInt(value) : null; // a name promises no type
  if (TIMES.test(name) && whole !== null) {
    const date = new Date(Number(whole / 1000000n));
    if (!Number.isNaN(date.getTime())) return date.toISOString().replace("T", " ").slice(0, 19);
  }
  if (/nbytes$/.test(name) && whole !== null) return bytes(Number(whole));
  if (/hash$/.test(name) && whole !== null) return whole.toString(16).padStart(16, "0");
  if (typeof value === "boolean") return value ? "yes" : "no";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function scores(found, title) {
  const number = (name, value, kind) =>
    make("div", { class: `tally ${kind}` }, make("b", {}, count(value)), make("span", {}, name));
  return section(
    title,
    make(
      "div",
      { class: "tallies" },
      number("hits", found.hits, "hit"),
      number("misses", found.misses, "miss"),
      number("false alarms", found.false_alarms, "false_alarm"),
    ),
    table([
      ["H-mean", share(found.hmean)],
      ["precision", share(found.precision)],
      ["recall", share(found.recall)],
    ]),
  );
}

function problems(lines) {
  const list = make("ul", { class: "problems" });
  for (const line of lines) list.append(make("li", {}, line));
  return section("Found while building", list);
}

function regions(sample, set, onHover, onPick) {
  const list = make("ol", { class: "regions" });
  const judged = sample.predictions[set]?.truths;
  sample.polygons.forEach((_, index) => {
    const ignored = sample.ignored[index];
    const state = judged?.[index] ?? (ignored ? "ignored" : "truth");
    const text = sample.texts?.[index];
    list.append(
      make(
        "li",
        {},
        make(
          "button",
          {
            type: "button",
            class: "region",
            onmouseenter: () => onHover("truth", index),
            onmouseleave: () => onHover("truth", null),
            onfocus: () => onHover("truth", index),
            onblur: () => onHover("truth", null),
            onclick: () => onPick(sample.polygons[index]),
          },
          make("i", { class: `swatch ${state}` }),
          make("span", { class: text ? "text" : "text soft" }, text || "no text"),
          make("small", { class: "soft" }, ignored ? "ignored" : judged ? state : ""),
        ),
      ),
    );
  });
  const ignored = sample.ignored.filter(Boolean).length;
  const title = `Polygons · ${count(sample.polygons.length)}${ignored ? `, ${ignored} ignored` : ""}`;
  return section(title, list);
}

function columns(list) {
  const body = make("tbody", {});
  for (const column of list) {
    body.append(
      make(
        "tr",
        { title: `hash ${column.hash}` },
        make("th", { scope: "row" }, column.name),
        make("td", {}, `${column.dtype} ${column.shape.join("×")}`),
        make("td", {}, column.codec),
        make("td", { class: "number" }, bytes(column.nbytes)),
      ),
    );
  }
  return make("table", {}, body);
}
