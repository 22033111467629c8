// The filter box: suggestions for field names, the mark where a filter is not understood.

import { count, find, make } from "./dom.js";
import { current, go } from "./route.js";

const WORD = /[\p{L}_][\p{L}\p{N}_./]*$/u;

export class FilterBox {
  #input = find("filter");
  #list = find("suggestions");
  #fields = [];
  #chosen = -1;
  #sql = false;

  constructor() {
    find("filter-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#chosen >= 0) this.#complete(this.#chosen);
      else this.#apply();
    });
    this.#input.addEventListener("input", () => {
      this.error(null);
      this.#suggest();
      find("filter-clear").hidden = !this.#input.value;
    });
    this.#input.addEventListener("keydown", (event) => this.#key(event));
    this.#input.addEventListener("blur", () => setTimeout(() => this.#hide(), 150));
    find("filter-clear").addEventListener("click", () => {
      this.#input.value = "";
      this.#apply();
      this.#input.focus();
    });
    find("sql").addEventListener("click", () => {
      this.#setSql(!this.#sql);
      if (this.#input.value.trim()) this.#apply();
      this.#input.focus();
    });
  }

  setFields(fields, sql) {
    this.#fields = fields;
    find("sql").hidden = !sql;
  }

  focus() {
    this.#input.focus();
    this.#input.select();
  }

  show(route) {
    if (document.activeElement !== this.#input || !route.filter) this.#input.value = route.filter;
    this.#setSql(route.sql);
    find("filter-clear").hidden = !this.#input.value;
  }

  matches(shown, total) {
    find("matches").textContent = current().filter && shown !== null ? `${count(shown)} of ${count(total)}` : "";
  }

  error(error) {
    const place = find("filter-error");
    place.hidden = !error;
    this.#input.toggleAttribute("aria-invalid", Boolean(error));
    if (!error) return;
    const parts = [error.message];
    const text = current().filter;
    if (Number.isInteger(error.position) && text) {
      const at = Math.min(error.position, text.length);
      const end = text.slice(at).search(/[\s()]|$/) + at;
      parts.push(
        make(
          "code",
          {},
          text.slice(0, at),
          make("mark", {}, text.slice(at, Math.max(end, at + 1)) || "⏎"),
          text.slice(Math.max(end, at + 1)),
        ),
      );
    }
    place.replaceChildren(...parts);
  }

  #setSql(on) {
    this.#sql = on;
    find("sql").setAttribute("aria-pressed", on);
    this.#input.placeholder = on
      ? "width > 1000 AND len(polygons) BETWEEN 5 AND 9"
      : this.#fields.some(({ name }) => name === "hmean")
        ? "hmean < 0.5 and polygons.count >= 5"
        : 'width > 1000 and key ~ "img_1"';
  }

  #apply() {
    this.#hide();
    go({ filter: this.#input.value.trim(), sql: this.#sql, key: null });
  }

  #key(event) {
    const options = this.#list.hidden ? 0 : this.#list.children.length;
    if (options && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      const step = event.key === "ArrowDown" ? 1 : -1;
      this.#choose((this.#chosen + step + options + (this.#chosen < 0 && step < 0 ? 1 : 0)) % options);
    } else if (options && event.key === "Tab" && !event.shiftKey) {
      event.preventDefault();
      this.#complete(Math.max(0, this.#chosen));
    } else if (event.key === "Escape") {
      event.stopPropagation();
      if (options) this.#hide();
      else this.#input.blur();
    }
  }

  #suggest() {
    const before = this.#input.value.slice(0, this.#input.selectionStart);
    const word = before.match(WORD)?.[0] ?? "";
    const inText = (before.match(/"/g) ?? []).length % 2 === 1;
    const found = inText || !word ? [] : this.#matching(word);
    this.#chosen = -1;
    this.#list.hidden = found.length === 0;
    this.#list.replaceChildren(
      ...found.map(({ name, kind }, index) =>
        make(
          "li",
          {
            role: "option",
            id: `suggestion-${index}`,
            onmousedown: (event) => {
              event.preventDefault();
              this.#complete(index);
            },
          },
          make("span", {}, name),
          make("small", { class: "soft" }, kind),
        ),
      ),
    );
  }

  #matching(word) {
    const low = word.toLowerCase();
    const usable = this.#fields.filter(({ name }) => !this.#sql || !name.includes("."));
    const found = usable.filter(({ name }) => name.toLowerCase().includes(low) && name !== word);
    if (usable.some(({ name }) => name === word) || /^(and|or|not|true|false)$/i.test(word)) return [];
    found.sort((a, b) => b.name.toLowerCase().startsWith(low) - a.name.toLowerCase().startsWith(low));
    return found.slice(0, 6);
  }

  #choose(index) {
    this.#chosen = index;
    [...this.#list.children].forEach((item, at) => item.setAttribute("aria-selected", at === index));
    this.#input.setAttribute("aria-activedescendant", `suggestion-${index}`);
  }

  #complete(index) {
    const name = this.#list.children[index]?.firstChild.textContent;
    if (!name) return;
    const end = this.#input.selectionStart;
    const start = end - (this.#input.value.slice(0, end).match(WORD)?.[0].length ?? 0);
    const quote = this.#sql ? '"' : "`";
    const safe = /^[\p{L}_][\p{L}\p{N}_/]*(\.[\p{L}\p{N}_]+)*$/u.test(name) && !(this.#sql && name.includes("/"));
    this.#input.setRangeText(safe ? name : quote + name + quote, start, end, "end");
    this.#hide();
  }

  #hide() {
    this.#list.hidden = true;
    this.#chosen = -1;
    this.#input.removeAttribute("aria-activedescendant");
  }
}
