// The page of one sample: which picture and layers are shown, previous and next.

import * as api from "./api.js";
import { count, find, make } from "./dom.js";
import { facts } from "./facts.js";
import { Layers } from "./layers.js";
import { bounds, IDENTITY, move } from "./matrix.js";
import { go, query } from "./route.js";
import { Stage } from "./stage.js";
import { load, save } from "./settings.js";

const TOGGLES = [
  { name: "polygons", label: "Polygons", key: "p", swatch: "truth" },
  { name: "ignored", label: "Ignored", key: "i", swatch: "ignored" },
  { name: "texts", label: "Texts", key: "t", swatch: "texts" },
  { name: "predictions", label: "Predictions", key: "d", swatch: "false_alarm" },
  { name: "prob_map", label: "Probability map", key: "m", swatch: "prob_map" },
  { name: "thresh_map", label: "Threshold map", key: "h", swatch: "thresh_map" },
  { name: "prob_mask", label: "Probability mask", key: "x", swatch: "prob_mask", note: "what does not count" },
  { name: "thresh_mask", label: "Threshold mask", key: "y", swatch: "thresh_mask", note: "what counts" },
];
const BASES = { picture: "Original", baked: "Baked", compare: "Compare" };

export class SampleView {
  #pages;
  #stage = new Stage(find("stage"));
  #layers = new Layers(this.#stage, find("stage"));
  #stageBeside = new Stage(find("stage-beside"));
  #layersBeside = new Layers(this.#stageBeside, find("stage-beside"));
  #sampleBeside = null; // of the other store
  #store = null;
  #set = 0; // which set of predictions
  #beside = ""; // what the right half shows: "", the number of a set, or "store"
  #minScore = 0;
  #sample = null;
  #asked = null;
  #base = load("base", "picture");
  #viewName = null;
  #on = new Set(load("on", ["polygons", "ignored", "predictions"]));
  #opacity = load("opacity", 65);

  constructor(pages) {
    this.#pages = pages;
    find("back").addEventListener("click", () => this.close());
    find("previous").addEventListener("click", () => this.step(-1));
    find("next").addEventListener("click", () => this.step(1));
    find("zoom-in").addEventListener("click", () => this.#stage.zoomBy(1.5));
    find("zoom-out").addEventListener("click", () => this.#stage.zoomBy(1 / 1.5));
    find("zoom-fit").addEventListener("click", () => this.#stage.fit());
    this.#stage.onChange(({ zoom }) => {
      find("zoom-fit").textContent = `${Math.round(zoom * 100)} %`;
    });
    const opacity = find("opacity");
    opacity.value = this.#opacity;
    opacity.addEventListener("input", () => {
      this.#opacity = Number(opacity.value);
      save("opacity", this.#opacity);
      this.#draw();
    });
    find("view").addEventListener("change", () => {
      this.#viewName = find("view").value;
      this.#frame(true);
    });
    find("set").addEventListener("change", () => {
      this.#set = Number(find("set").value);
      this.#fillFacts();
      this.#draw();
    });
    find("beside").addEventListener("change", () => {
      this.#beside = find("beside").value;
      this.show(this.#asked, { anew: true });
    });
    find("score").addEventListener("input", () => {
      this.#minScore = Number(find("score").value);
      find("score-shown").value = (this.#minScore / 100).toFixed(2);
      this.show(this.#asked, { anew: true });
    });
    find("tags-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#saveTags(find("tags").value.split(","));
    });
    find("tags").addEventListener("change", () => this.#saveTags(find("tags").value.split(",")));
    // both halves move together; whoever follows does not lead
    let leading = null;
    const lead = (one, other) => {
      if (leading || find("stage-beside").hidden) return;
      leading = one;
      other.follow(one);
      leading = null;
    };
    this.#stage.onChange(() => lead(this.#stage, this.#stageBeside));
    this.#stageBeside.onChange(() => lead(this.#stageBeside, this.#stage));
    this.#wipe();
  }

  // what the store has: sets of predictions, another store beside
  setStore(store) {
    this.#store = store;
    const sets = store.predictions;
    const options = sets.map(({ name }, index) => make("option", { value: index }, name));
    find("set").replaceChildren(...options);
    find("set-row").hidden = sets.length < 2;
    const beside = [make("option", { value: "" }, "nothing")];
    if (sets.length > 1) {
      sets.forEach(({ name }, index) => beside.push(make("option", { value: index }, name)));
    }
    if (store.beside) beside.push(make("option", { value: "store" }, store.beside));
    find("beside").replaceChildren(...beside);
    find("beside-row").hidden = beside.length < 2;
    this.#beside = store.beside ? "store" : sets.length > 1 ? "1" : "";
    find("beside").value = this.#beside;
  }

  get isOpen() {
    return !find("sample").hidden;
  }

  get position() {
    return this.#sample?.position ?? null;
  }

  close() {
    // opened from the grid, the grid is one step back in the history
    if (history.state?.opened) history.back();
    else go({ key: null });
  }

  hide() {
    find("sample").hidden = true;
    this.#asked = null;
    this.#layers.clear();
    this.#layersBeside.clear();
    this.#sample = null;
  }

  async show(key, { anew = false } = {}) {
    const section = find("sample");
    const first = section.hidden;
    section.hidden = false;
    if (!anew && this.#asked === key) return;
    this.#asked = key;
    find("sample-key").textContent = key;
    section.classList.add("busy");
    if (first) find("stage").focus({ preventScroll: true });
    let sample;
    let beside = null;
    const parameters = { key, min_score: this.#minScore };
    try {
      sample = await api.get("/api/sample", { ...parameters, ...query() });
      if (this.#beside === "store") {
        beside = await api.get("/api/sample", { ...parameters, beside: 1 }).catch((error) => {
          if (error.kind !== "missing") throw error;
          return null; // the other store has no such sample
        });
      }
    } catch (error) {
      if (this.#asked === key) this.#fail(error);
      return;
    } finally {
      section.classList.remove("busy");
    }
    if (this.#asked !== key) return;
    const old = this.#sample;
    this.#sample = sample;
    this.#sampleBeside = beside && { ...beside, beside: true };
    section.classList.remove("failed");
    this.#note("");
    this.#fillPosition();
    this.#fillBases();
    this.#fillToggles();
    const keep = anew && old !== null;
    this.#fillTags(sample.tags);
    this.#fillFacts();
    if (!keep) find("panel").scrollTop = 0;
    this.#frame(keep);
    if (!this.#usable().length) this.#note("No column of this store holds a picture of it.");
    this.#prepareNeighbours();
  }

  #fillFacts() {
    find("facts").replaceChildren(
      ...facts(this.#sample, {
        names: this.#store.predictions.map(({ name }) => name),
        set: this.#set,
        onHover: (kind, index) => this.#layers.highlight(kind, index),
        onPick: (flat) => this.#stage.fitTo(bounds(move(this.#toFrame(), flat))),
      }),
    );
  }

  // ---- tags ----

  #fillTags(tags) {
    find("tags-form").hidden = !tags;
    find("tags").value = (tags ?? []).join(", ");
    find("tags-error").hidden = true;
  }

  async #saveTags(words) {
    const { key } = this.#sample;
    try {
      const parameters = [["key", key], ...words.map((word) => ["tag", word])];
      const { tags } = await api.post("/api/tags", parameters);
      if (this.#sample?.key !== key) return;
      this.#sample.tags = tags;
      this.#fillTags(tags);
    } catch (error) {
      find("tags-error").hidden = false;
      find("tags-error").textContent = error.message;
    }
  }

  #toggleSelected() {
    const { tags } = this.#sample ?? {};
    if (!tags) return;
    const left = tags.filter((tag) => tag !== "selected");
    this.#saveTags(left.length < tags.length ? left : [...tags, "selected"]);
  }

  async step(by) {
    const position = this.position;
    if (position === null) return;
    const next = position + by;
    if (next < 0 || next >= (this.#pages.total ?? 0)) return;
    const item = await this.#pages.fetch(next);
    if (item) go({ key: item.key }, { replace: true });
  }

  key(event) {
    if (event.shiftKey && event.key.startsWith("Arrow")) {
      const [dx, dy] = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      this.#stage.panBy(dx * 80, dy * 80);
      return true;
    }
    const actions = {
      Escape: () => this.close(),
      ArrowRight: () => this.step(1),
      ArrowDown: () => this.step(1),
      j: () => this.step(1),
      ArrowLeft: () => this.step(-1),
      ArrowUp: () => this.step(-1),
      k: () => this.step(-1),
      "+": () => this.#stage.zoomBy(1.5),
      "=": () => this.#stage.zoomBy(1.5),
      "-": () => this.#stage.zoomBy(1 / 1.5),
      0: () => this.#stage.fit(),
      1: () => this.#stage.zoomTo(1),
      s: () => this.#toggleSelected(),
      b: () => this.#nextBase(),
      c: () => this.#setBase(this.#shownBase() === "compare" ? "picture" : "compare"),
    };
    for (const { name, key } of TOGGLES) actions[key] = () => this.#toggle(name);
    if (!(event.key in actions)) return false;
    actions[event.key]();
    return true;
  }

  // ---- what is shown ----

  get #view() {
    const views = this.#sample?.views ?? [];
    return views.find((view) => view.name === this.#viewName) ?? views[0] ?? null;
  }

  #usable() {
    const sample = this.#sample;
    const tensor = Boolean(this.#view?.layers.tensor);
    const placed = Boolean(this.#view?.inverse && sample.size);
    const bases = [];
    if (sample.picture) bases.push("picture");
    if (tensor) bases.push("baked");
    if (sample.picture && tensor && placed) bases.push("compare");
    return bases;
  }

  #shownBase() {
    const usable = this.#usable();
    return usable.includes(this.#base) ? this.#base : (usable[0] ?? "picture");
  }

  #toFrame() {
    return this.#shownBase() === "baked" ? (this.#view?.forward ?? IDENTITY) : IDENTITY;
  }

  #setBase(base) {
    if (!this.#sample || !this.#usable().includes(base)) return;
    this.#base = base;
    save("base", base);
    this.#frame(true);
  }

  #nextBase() {
    const usable = this.#usable().filter((base) => base !== "compare");
    const at = usable.indexOf(this.#shownBase());
    if (usable.length) this.#setBase(usable[(at + 1) % usable.length]);
  }

  #toggle(name) {
    if (!this.#sample || !this.#has(name)) return;
    if (this.#on.has(name)) this.#on.delete(name);
    else this.#on.add(name);
    save("on", [...this.#on]);
    this.#draw();
  }

  #has(name) {
    if (name === "predictions") return this.#sample.predictions.some(Boolean);
    if (name === "ignored") return this.#sample.ignored.some(Boolean);
    if (name === "texts") return Boolean(this.#sample.texts?.some(Boolean));
    if (name === "polygons") return this.#sample.polygons.length > 0;
    // a map can lie over the original only where the matrix says how
    const placed = this.#shownBase() === "baked" || Boolean(this.#view?.inverse);
    return Boolean(this.#view?.layers[name]) && placed;
  }

  #frame(keep) {
    const [width, height] = Layers.frameOf(this.#sample, this.#view, this.#shownBase());
    const split = this.#beside !== "";
    find("stage-beside").hidden = !split;
    find("stage-name").hidden = !split;
    this.#stage.setFrame(width, height, { keep });
    if (split) {
      const other = this.#sampleBeside ?? this.#sample;
      const view = this.#viewOf(other);
      this.#stageBeside.setFrame(...Layers.frameOf(other, view, this.#shownBase()), { keep: true });
      this.#stageBeside.follow(this.#stage);
    }
    this.#draw();
  }

  #draw() {
    const sample = this.#sample;
    if (!sample) return;
    const base = this.#shownBase();
    const on = new Set([...this.#on].filter((name) => this.#has(name)));
    const shown = { base, view: this.#view, on, opacity: this.#opacity / 100, set: this.#set };
    this.#layers.draw(sample, shown);
    this.#drawBeside(shown);
    find("wipe").hidden = base !== "compare";
    for (const button of find("base").children) {
      button.setAttribute("aria-checked", button.dataset.base === base);
      button.tabIndex = button.dataset.base === base ? 0 : -1;
    }
    for (const button of find("toggles").children) {
      const name = button.dataset.name;
      button.setAttribute("aria-pressed", this.#on.has(name) && this.#has(name));
      button.disabled = !this.#has(name);
    }
    const maps = ["prob_map", "thresh_map", "prob_mask", "thresh_mask"];
    find("opacity").disabled = !maps.some((name) => on.has(name));
  }

  #drawBeside(shown) {
    const sets = this.#store.predictions;
    const other = this.#beside === "store" ? this.#sampleBeside : this.#beside === "" ? null : this.#sample;
    const name = this.#beside === "store" ? this.#store.beside : sets[Number(this.#beside)]?.name;
    find("stage-name").textContent = this.#beside === "store" ? this.#store.name : (sets[this.#set]?.name ?? "");
    find("beside-name").textContent = other || this.#beside === "" ? name : `${name} has no such sample`;
    if (!other) {
      this.#layersBeside.clear();
      return;
    }
    const set = this.#beside === "store" ? 0 : Number(this.#beside);
    this.#layersBeside.draw(other, { ...shown, view: this.#viewOf(other), set });
  }

  #viewOf(sample) {
    return sample.views.find((view) => view.name === this.#view?.name) ?? sample.views[0] ?? null;
  }

  // ---- the panel ----

  #fillPosition() {
    const { position } = this.#sample;
    const total = this.#pages.total;
    find("position").textContent =
      position === null ? "not in the filter" : `${count(position + 1)} / ${count(total ?? 0)}`;
    find("previous").disabled = position === null || position === 0;
    find("next").disabled = position === null || total === null || position + 1 >= total;
  }

  refreshPosition() {
    if (this.#sample) this.#fillPosition();
  }

  #fillBases() {
    const buttons = this.#usable().map((base) =>
      make(
        "button",
        { type: "button", role: "radio", "data-base": base, onclick: () => this.#setBase(base) },
        BASES[base],
      ),
    );
    find("base").replaceChildren(...buttons);
    const views = this.#sample.views;
    find("view-row").hidden = views.length < 2;
    find("view").replaceChildren(...views.map((view) => make("option", {}, view.name)));
    if (this.#view) find("view").value = this.#view.name;
  }

  #fillToggles() {
    const known = TOGGLES.filter(
      ({ name }) =>
        !["predictions", "prob_map", "thresh_map", "prob_mask", "thresh_mask"].includes(name) ||
        (name === "predictions" ? this.#sample.predictions.some(Boolean) : this.#view?.layers[name]),
    );
    find("toggles").replaceChildren(
      ...known.map(({ name, label, key, swatch, note }) =>
        make(
          "button",
          { type: "button", class: "toggle", "data-name": name, title: note, onclick: () => this.#toggle(name) },
          make("i", { class: `swatch ${swatch}` }),
          make("span", {}, label),
          make("kbd", {}, key),
        ),
      ),
    );
    const scored = this.#sample.predictions.some((found) => found?.boxes.some(({ score }) => score !== null));
    find("score-row").hidden = !scored && !this.#minScore;
    find("opacity-row").hidden = !known.some(({ name }) => name.includes("map") || name.includes("mask"));
  }

  #wipe() {
    const wipe = find("wipe");
    const stage = find("stage");
    let value = 50;
    const set = (next) => {
      value = Math.min(100, Math.max(0, next));
      stage.style.setProperty("--wipe", `${value}%`);
      wipe.setAttribute("aria-valuenow", Math.round(value));
    };
    set(50);
    wipe.addEventListener("pointerdown", (event) => wipe.setPointerCapture(event.pointerId));
    wipe.addEventListener("pointermove", (event) => {
      if (!wipe.hasPointerCapture(event.pointerId)) return;
      const box = stage.getBoundingClientRect();
      set(((event.clientX - box.left) / box.width) * 100);
    });
    wipe.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -2, ArrowRight: 2, Home: -100, End: 100 }[event.key];
      if (by === undefined) return;
      event.preventDefault();
      event.stopPropagation();
      set(value + by);
    });
  }

  #fail(error) {
    this.#layers.clear();
    this.#layersBeside.clear();
    this.#sample = null;
    find("sample").classList.add("failed");
    find("wipe").hidden = true;
    find("position").textContent = "";
    find("previous").disabled = true;
    find("next").disabled = true;
    const missing = error.kind === "missing";
    this.#note(
      missing ? "There is no such sample in this store." : error.message,
      make("button", { type: "button", class: "button", onclick: () => go({ key: null }) }, "Back to the grid"),
    );
  }

  #note(text, ...more) {
    const note = find("stage-note");
    note.hidden = !text;
    note.replaceChildren(make("p", {}, text), ...more);
  }

  #prepareNeighbours() {
    const { position, state } = this.#sample;
    if (position === null) return;
    const column = this.#shownBase() === "baked" ? this.#view?.layers.tensor : this.#sample.picture;
    for (const near of [position + 1, position - 1]) {
      const item = near >= 0 ? this.#pages.at(near) : undefined;
      if (item && column) new Image().src = api.picture({ state, row: item.row }, column);
    }
  }
}
