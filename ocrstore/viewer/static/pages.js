// The rows of the current selection, fetched and cached page by page.

import * as api from "./api.js";
import { query } from "./route.js";

const SIZE = 120;
const KEPT = 80;

export class Pages {
  #pages = new Map(); // page number -> the page, or null while it is under way
  #waiting = new Map(); // page number -> {promise, abort}
  #generation = 0;
  total = null;
  state = "";
  sql = false; // whether the server read the filter as SQL

  // clear the cache; resolves with the first page
  async reset() {
    this.#generation += 1;
    for (const { abort } of this.#waiting.values()) abort.abort();
    this.#pages.clear();
    this.#waiting.clear();
    return this.#load(0);
  }

  // the sample at a position, or undefined if it is not loaded
  at(position) {
    const page = this.#pages.get(Math.floor(position / SIZE));
    if (!page) return undefined;
    const index = position - page.start;
    if (index >= page.rows.length) return undefined;
    const item = { position, row: page.rows[index], key: page.keys[index] };
    for (const name of ["width", "height", "polygons_count", "ignored_true", "hmean", "value"]) {
      if (page[name]) item[name] = page[name][index];
    }
    return item;
  }

  async fetch(position) {
    const found = this.at(position);
    if (found) return found;
    await this.#load(Math.floor(position / SIZE));
    return this.at(position);
  }

  // load a range; resolves to true if anything was new
  async need(first, last) {
    const wanted = [];
    for (let page = Math.floor(first / SIZE); page <= Math.floor(last / SIZE); page += 1) {
      if (!this.#pages.has(page)) wanted.push(page);
    }
    for (const [page, { abort }] of this.#waiting) {
      const near = page >= Math.floor(first / SIZE) - 1 && page <= Math.floor(last / SIZE) + 1;
      if (!near) {
        abort.abort();
        this.#waiting.delete(page);
      }
    }
    await Promise.all(wanted.map((page) => this.#load(page)));
    return wanted.length > 0;
  }

  #load(number) {
    const known = this.#waiting.get(number);
    if (known) return known.promise;
    const abort = new AbortController();
    const generation = this.#generation;
    const parameters = { ...query(), start: number * SIZE, count: SIZE };
    const promise = api
      .get("/api/rows", parameters, abort.signal)
      .then((page) => {
        if (generation !== this.#generation) return page;
        this.total = page.total;
        this.state = page.state;
        this.sql = page.sql;
        this.#pages.set(number, page);
        if (this.#pages.size > KEPT) this.#pages.delete(this.#pages.keys().next().value);
        return page;
      })
      .finally(() => {
        if (this.#waiting.get(number)?.promise === promise) this.#waiting.delete(number);
      });
    this.#waiting.set(number, { promise, abort });
    return promise;
  }
}
