// The grid: as many tiles as fit the window, reused while scrolling.

import * as api from "./api.js";
import { count, find, make, share } from "./dom.js";
import { current, format, go } from "./route.js";

const GAP = 14;
const CAPTION = 46;
const OVERSCAN = 2; // rows beyond either edge
const MAX_HEIGHT = 8_000_000; // browsers give up on taller elements; beyond it, rows are squeezed

export class Grid {
  #pages;
  #scroller = find("grid");
  #sizer = find("sizer");
  #tiles = new Map(); // position -> tile
  #spare = [];
  #columns = 1;
  #cell = { width: 200, height: 200 };
  #wanted = 220;
  #frame = 0;
  #timer = 0;
  #cursor = 0;
  outlines = true;

  constructor(pages) {
    this.#pages = pages;
    this.#scroller.addEventListener("scroll", () => this.#schedule(), { passive: true });
    new ResizeObserver(() => this.layout()).observe(this.#scroller);
    this.#sizer.addEventListener("focusin", (event) => {
      const tile = event.target.closest(".tile");
      if (tile) this.#setCursor(Number(tile.dataset.position));
    });
    this.#sizer.addEventListener("click", (event) => {
      const tile = event.target.closest(".tile");
      if (!tile || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
      event.preventDefault();
      if (tile.dataset.key !== undefined) go({ key: tile.dataset.key });
    });
  }

  get cursor() {
    return this.#cursor;
  }

  setSize(width) {
    this.#wanted = width;
    this.layout();
  }

  // tiles show what is known now; all of them are filled anew
  refresh({ top = false } = {}) {
    for (const tile of this.#tiles.values()) this.#free(tile);
    this.#tiles.clear();
    if (top) {
      this.#cursor = 0;
      this.#scroller.scrollTop = 0;
    }
    this.layout();
  }

  layout() {
    const style = getComputedStyle(this.#scroller);
    const width =
      this.#scroller.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    if (width <= 0) return;
    const anchor = this.#first();
    const columns = Math.max(2, Math.floor((width + GAP) / (this.#wanted + GAP)));
    const cell = (width - GAP * (columns - 1)) / columns;
    const changed = columns !== this.#columns || Math.abs(cell - this.#cell.width) > 0.5;
    this.#columns = columns;
    this.#cell = { width: cell, height: Math.round(cell * 0.75) + CAPTION };
    this.#sizer.style.setProperty("--tile", `${cell}px`);
    this.#sizer.style.setProperty("--picture", `${this.#cell.height - CAPTION}px`);
    this.#sizer.style.height = `${Math.min(this.#height(), MAX_HEIGHT)}px`;
    if (changed && anchor > 0) this.#scrollToRow(Math.floor(anchor / columns));
    this.#render(true);
  }

  // ---- where things are ----

  get #pitch() {
    return this.#cell.height + GAP;
  }

  #rows() {
    return Math.ceil((this.#pages.total ?? 0) / this.#columns);
  }

  #height() {
    return Math.max(0, this.#rows() * this.#pitch - GAP);
  }

  // with a store too long for one element, the scroll bar stands for a share of all rows
  #squeeze() {
    const view = this.#scroller.clientHeight;
    const real = this.#height();
    if (real <= MAX_HEIGHT) return 1;
    return (real - view) / (MAX_HEIGHT - view);
  }

  #top() {
    return this.#scroller.scrollTop * this.#squeeze();
  }

  #first() {
    return Math.floor(this.#top() / this.#pitch) * this.#columns;
  }

  #scrollToRow(row) {
    this.#scroller.scrollTop = (row * this.#pitch) / this.#squeeze();
  }

  get #visibleRows() {
    return Math.max(1, Math.floor(this.#scroller.clientHeight / this.#pitch));
  }

  // ---- drawing ----

  #schedule() {
    if (!this.#frame) {
      this.#frame = requestAnimationFrame(() => {
        this.#frame = 0;
        this.#render(false);
      });
    }
  }

  #render(place) {
    const total = this.#pages.total ?? 0;
    const top = this.#top();
    const firstRow = Math.max(0, Math.floor(top / this.#pitch) - OVERSCAN);
    const lastRow = Math.ceil((top + this.#scroller.clientHeight) / this.#pitch) + OVERSCAN;
    const first = firstRow * this.#columns;
    const last = Math.min(total, lastRow * this.#columns) - 1;
    for (const [position, tile] of this.#tiles) {
      if (position < first || position > last) {
        this.#tiles.delete(position);
        this.#free(tile);
      }
    }
    const squeezed = this.#squeeze() !== 1;
    const shift = squeezed ? this.#scroller.scrollTop - top : 0;
    for (let position = first; position <= last; position += 1) {
      let tile = this.#tiles.get(position);
      const fresh = !tile;
      if (fresh) {
        tile = this.#take(position);
        this.#tiles.set(position, tile);
      }
      if (fresh || place || squeezed) {
        const x = (position % this.#columns) * (this.#cell.width + GAP);
        const y = Math.floor(position / this.#columns) * this.#pitch + shift;
        tile.style.transform = `translate(${x}px, ${y}px)`;
      }
      if (!tile.filled) this.#fill(tile, position);
    }
    if (last < first) return;
    // while scrolling fast, pages are asked for once the hand rests
    clearTimeout(this.#timer);
    this.#timer = setTimeout(async () => {
      try {
        if (await this.#pages.need(first, last)) this.#render(false);
      } catch (error) {
        if (error.name !== "AbortError") console.warn(error.message);
      }
    }, 50);
  }

  #take(position) {
    let tile = this.#spare.pop();
    if (!tile) {
      const image = make("img", { alt: "", decoding: "async", draggable: "false" });
      image.addEventListener("load", () => tile.classList.add("loaded"));
      image.addEventListener("error", () => {
        if (image.hasAttribute("src")) tile.classList.add("failed");
      });
      tile = make(
        "a",
        { class: "tile", role: "listitem", tabindex: "-1" },
        make("span", { class: "frame" }, image),
        make("span", { class: "key" }),
        make("span", { class: "about soft" }),
      );
      this.#sizer.append(tile);
    }
    tile.hidden = false;
    tile.dataset.position = position;
    tile.setAttribute("aria-posinset", position + 1);
    tile.setAttribute("aria-setsize", this.#pages.total ?? -1);
    tile.tabIndex = position === this.#cursor ? 0 : -1;
    return tile;
  }

  #free(tile) {
    tile.hidden = true;
    tile.filled = false;
    tile.classList.remove("loaded", "failed");
    tile.firstChild.firstChild.removeAttribute("src"); // ends a load that is under way
    tile.children[1].textContent = "";
    tile.children[2].replaceChildren();
    tile.removeAttribute("href");
    delete tile.dataset.key;
    this.#spare.push(tile);
  }

  #fill(tile, position) {
    const item = this.#pages.at(position);
    if (!item) return;
    tile.filled = true;
    tile.dataset.key = item.key;
    tile.href = format({ ...current(), key: item.key });
    tile.title = item.key;
    tile.children[1].textContent = item.key;
    tile.children[2].replaceChildren(...about(item));
    const pixels = this.#cell.width * Math.min(devicePixelRatio || 1, 2);
    const side = pixels <= 170 ? 160 : pixels <= 400 ? 320 : 640;
    const image = tile.firstChild.firstChild;
    image.src = api.thumbnail(this.#pages.state, item.row, side, this.outlines);
  }

  // ---- keys ----

  #setCursor(position) {
    const old = this.#tiles.get(this.#cursor);
    if (old) old.tabIndex = -1;
    this.#cursor = position;
    const tile = this.#tiles.get(position);
    if (tile) tile.tabIndex = 0;
  }

  // bring a position into sight and give it the focus
  show(position, { focus = true } = {}) {
    const total = this.#pages.total ?? 0;
    if (!total) return;
    position = Math.max(0, Math.min(total - 1, position));
    const row = Math.floor(position / this.#columns);
    const top = this.#top();
    const view = this.#scroller.clientHeight;
    if (row * this.#pitch < top) this.#scrollToRow(row);
    else if ((row + 1) * this.#pitch > top + view) {
      this.#scroller.scrollTop = ((row + 1) * this.#pitch - view + GAP) / this.#squeeze();
    }
    this.#render(false);
    this.#setCursor(position);
    if (focus) this.#tiles.get(position)?.focus({ preventScroll: true });
  }

  key(event) {
    const focused = document.activeElement?.classList.contains("tile");
    const steps = {
      ArrowRight: 1,
      ArrowLeft: -1,
      j: 1,
      k: -1,
      ArrowDown: this.#columns,
      ArrowUp: -this.#columns,
      PageDown: this.#columns * this.#visibleRows,
      PageUp: -this.#columns * this.#visibleRows,
      Home: -Infinity,
      End: Infinity,
    };
    if (!(event.key in steps)) return false;
    if (focused) this.show(this.#cursor + steps[event.key]);
    else if (Number.isFinite(steps[event.key])) this.show(Math.max(this.#cursor, this.#first()));
    else this.show(steps[event.key]);
    return true;
  }
}

function about(item) {
  const parts = [];
  if (item.width && item.height) parts.push(`${item.width}×${item.height}`);
  if (item.polygons_count !== undefined) {
    const polygons = item.polygons_count;
    parts.push(`${count(polygons)} ${polygons === 1 ? "polygon" : "polygons"}`);
  }
  const out = [make("span", {}, parts.join(" · "))];
  if (item.hmean !== undefined && item.hmean !== null) {
    const grade = item.hmean >= 0.8 ? "good" : item.hmean >= 0.5 ? "fair" : "poor";
    out.push(make("b", { class: `score ${grade}`, title: "H-mean" }, share(item.hmean)));
  } else if (item.value !== undefined && item.value !== null && !(item.value === item.key)) {
    const known = [item.width, item.height, item.polygons_count];
    if (!known.includes(item.value)) out.push(make("b", { class: "value" }, String(item.value)));
  }
  return out;
}
