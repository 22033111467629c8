// The search box: suggestions for field names, whether the filter was read as SQL or words, and what is wrong.

import { count, find, make } from "./dom.js";
import { current, go } from "./route.js";

const WORD = /[\p{L}_][\p{L}\p{N}_]*$/u;
const KEYWORD = /^(and|or|not|true|false|is|in|null|like|ilike|between)$/i;

export class FilterBox {
  #input = find("filter");
  #list = find("suggestions");
  #fields = [];
  #chosen = -1;

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
    this.#input.addEventListener("blur", () =>
      setTimeout(() => document.activeElement !== this.#input && this.#hide(), 150),
    );
    find("filter-clear").addEventListener("click", () => {
      this.#input.value = "";
      this.#apply();
      this.#input.focus();
    });
  }

  setFields(fields) {
    this.#fields = fields;
    const example = fields.some(({ name }) => name === "hmean") ? "hmean < 0.5" : "width > 1000";
    this.#input.placeholder = `words, or SQL: ${example}`;
  }

  focus() {
    this.#input.focus();
    this.#input.select();
  }

  show(route) {
    if (document.activeElement !== this.#input || !route.filter) this.#input.value = route.filter;
    find("filter-clear").hidden = !this.#input.value;
  }

  // after an answer: how many samples there are, and how the filter was read; null: there is no answer
  matches(pages, total) {
    const shown = pages !== null && current().filter !== "";
    find("matches").textContent = shown ? `${count(pages.total)} of ${count(total)}` : "";
    const mode = find("mode");
    mode.hidden = !shown;
    if (!shown) return;
    mode.textContent = pages.sql ? "SQL" : "words";
    mode.title = pages.sql ? "Read as a SQL condition" : "Read as words in keys and texts";
  }

  error(error) {
    const place = find("filter-error");
    place.hidden = !error;
    this.#input.toggleAttribute("aria-invalid", Boolean(error));
    if (!error) return;
    const parts = [error.message];
    const text = current().filter;
    if (Number.isInteger(error.position) && text) {
      // the server counts characters, JavaScript the halves of some
      const at = [...text].slice(0, error.position).join("").length;
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

  #apply() {
    this.#hide();
    go({ filter: this.#input.value.trim(), key: null });
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
    const inText = [`"`, "'"].some((quote) => (before.split(quote).length - 1) % 2 === 1);
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
    if (this.#fields.some(({ name }) => name === word) || KEYWORD.test(word)) return [];
    const found = this.#fields.filter(({ name }) => name.toLowerCase().includes(low));
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
    const safe = /^[\p{L}_][\p{L}\p{N}_]*$/u.test(name);
    this.#input.setRangeText(safe ? name : `"${name}"`, start, end, "end");
    this.#hide();
  }

  #hide() {
    this.#list.hidden = true;
    this.#chosen = -1;
    this.#input.removeAttribute("aria-activedescendant");
  }
}
