// The histogram beside the grid: how often each value of the field occurs that samples are sorted by.

import * as api from "./api.js";
import { count, find, make } from "./dom.js";
import { current, go, query } from "./route.js";
import { load, save } from "./settings.js";

export class Counts {
  #place = find("counts");
  #open = load("counts", false);
  #asked = 0;

  toggle() {
    this.#open = !this.#open;
    save("counts", this.#open);
    this.show(current());
  }

  async show(route) {
    find("counts-open").setAttribute("aria-pressed", this.#open);
    this.#place.hidden = !this.#open;
    if (!this.#open) return;
    if (!route.sort) {
      this.#place.replaceChildren(make("p", { class: "soft" }, "Choose a field to sort by to see how its values are spread."));
      return;
    }
    const asked = ++this.#asked;
    let found;
    try {
      found = await api.get("/api/histogram", query(route));
    } catch (error) {
      found = { error: error.message };
    }
    if (asked === this.#asked) this.#draw(route.sort, found);
  }

  #draw(field, { values, edges, counts = [], missing = 0, error }) {
    const parts = [make("h2", {}, field)];
    if (error) parts.push(make("p", { class: "soft" }, error));
    const most = Math.max(1, ...counts);
    counts.forEach((number, index) => {
      const label = values ? shown(values[index]) : short(edges[index]);
      const last = index + 1 === counts.length;
      const condition = values
        ? equals(field, values[index])
        : `${quoted(field)} >= ${edges[index]} AND ${quoted(field)} ${last ? "<=" : "<"} ${edges[index + 1]}`;
      const bar = make("i", { class: "count-bar" });
      bar.style.width = `${(100 * number) / most}%`;
      parts.push(
        make(
          "button",
          { type: "button", class: "count", title: condition, onclick: () => narrow(condition) },
          make("span", { class: "soft number" }, label),
          make("span", { class: "count-track" }, bar),
          make("span", { class: "number" }, count(number)),
        ),
      );
    });
    if (missing) parts.push(make("p", { class: "soft" }, `${count(missing)} without a number`));
    this.#place.replaceChildren(...parts);
  }
}

// the condition is added to a SQL filter, and replaces words
function narrow(condition) {
  const now = current().filter.trim();
  const isSql = /[=<>(]/.test(now);
  go({ filter: isSql ? `(${now}) AND ${condition}` : condition });
}

const quoted = (name) => (/^[a-z_]\w*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`);

function equals(field, value) {
  if (value === null) return `${quoted(field)} IS NULL`;
  if (typeof value === "string") return `${quoted(field)} = '${value.replaceAll("'", "''")}'`;
  return `${quoted(field)} = ${value}`;
}

function shown(value) {
  if (value === null) return "–";
  return typeof value === "boolean" ? (value ? "yes" : "no") : String(value);
}

const short = (value) => (Number.isInteger(value) ? count(value) : Number(value.toPrecision(3)).toString());
