// The layers of the stage: picture, baked view, maps, outlines, texts.

import * as api from "./api.js";
import { make, shape } from "./dom.js";
import { IDENTITY, move, toCss } from "./matrix.js";

const LABEL = { smallest: 6.5, largest: 13 }; // pixels of the screen
const MAPS = ["prob_mask", "thresh_mask", "thresh_map", "prob_map"]; // the last lies on top

export class Layers {
  #stage;
  #element;
  #worlds;
  #root;
  #images = new Map(); // column -> element
  #labels = [];
  #sample = null;

  constructor(stage, element) {
    this.#stage = stage;
    this.#element = element;
    this.#worlds = [...element.querySelectorAll(".world")];
    this.#root = element.querySelector(".shapes > g");
    stage.onChange(() => this.#place());
  }

  // sizes of the frame that `base` is shown in
  static frameOf(sample, view, base) {
    if (base === "baked" || !sample.size) return view ? [view.size[1], view.size[0]] : [1, 1];
    return [sample.size[1], sample.size[0]];
  }

  clear() {
    for (const world of this.#worlds) world.replaceChildren();
    this.#root.replaceChildren();
    this.#images.clear();
    this.#labels = [];
    this.#sample = null;
  }

  // `shown` has base, view and the names of the toggles that are on
  draw(sample, shown) {
    if (this.#sample !== sample) this.clear();
    this.#sample = sample;
    const view = shown.view;
    const inPicture = shown.base !== "baked" && sample.size;
    const toFrame = inPicture ? (view?.inverse ?? IDENTITY) : IDENTITY;
    const wanted = new Map();
    if (shown.base !== "baked" && sample.picture) {
      wanted.set(sample.picture, { world: 0, matrix: IDENTITY, size: sample.size, opacity: 1 });
    }
    if (view?.layers.tensor && (shown.base !== "picture" || !sample.picture)) {
      const world = shown.base === "compare" ? 1 : 0;
      wanted.set(view.layers.tensor, { world, matrix: toFrame, size: view.size, opacity: 1 });
    }
    for (const [depth, name] of MAPS.entries()) {
      const column = view?.layers[name];
      if (!column || !shown.on.has(name)) continue;
      const world = shown.base === "compare" ? 1 : 0;
      const options = { world, matrix: toFrame, size: view.size, opacity: shown.opacity, depth: depth + 1 };
      wanted.set(column, options);
    }
    for (const [column, image] of this.#images) {
      if (!wanted.has(column)) {
        image.remove();
        this.#images.delete(column);
      }
    }
    for (const [column, options] of wanted) this.#image(sample, column, options);
    const [width, height] = Layers.frameOf(sample, view, shown.base);
    for (const world of this.#worlds) {
      world.style.width = `${width}px`;
      world.style.height = `${height}px`;
    }
    this.#element.querySelector(".wiped").hidden = shown.base !== "compare";
    this.#outlines(sample, shown, inPicture ? IDENTITY : (view?.forward ?? IDENTITY));
    this.#place();
  }

  // light up one polygon, or none
  highlight(kind, index) {
    for (const element of this.#root.querySelectorAll(".lit")) element.classList.remove("lit");
    if (index === null) return;
    this.#root.querySelector(`[data-${kind}="${index}"]`)?.classList.add("lit");
  }

  #image(sample, column, { world, matrix, size, opacity, depth = 0 }) {
    let image = this.#images.get(column);
    if (!image) {
      image = make("img", { alt: "", draggable: "false", decoding: "async", "data-column": column });
      const stage = this.#element;
      stage.dataset.loading = Number(stage.dataset.loading ?? 0) + 1;
      const done = () => {
        stage.dataset.loading = Math.max(0, Number(stage.dataset.loading) - 1);
      };
      image.addEventListener("load", () => {
        image.classList.add("loaded");
        done();
      });
      image.addEventListener("error", done);
      image.src = api.picture(sample, column);
      this.#images.set(column, image);
    }
    image.style.width = `${size[1]}px`;
    image.style.height = `${size[0]}px`;
    image.style.transform = toCss(matrix);
    image.style.zIndex = depth;
    image.style.setProperty("--opacity", opacity);
    if (image.parentNode !== this.#worlds[world]) this.#worlds[world].append(image);
  }

  #outlines(sample, shown, matrix) {
    this.#root.replaceChildren();
    this.#labels = [];
    const found = sample.predictions[shown.set ?? 0];
    const judged = found && shown.on.has("predictions");
    sample.polygons.forEach((flat, index) => {
      const ignored = sample.ignored[index];
      if (ignored ? !shown.on.has("ignored") : !shown.on.has("polygons")) return;
      const state = judged ? found.truths[index] : ignored ? "ignored" : "truth";
      this.#polygon(move(matrix, flat), `outline ${state}`, { "data-truth": index });
      const text = sample.texts?.[index];
      if (text && shown.on.has("texts")) this.#label(move(matrix, flat), text, state);
    });
    if (!judged) return;
    found.boxes.forEach((box, index) => {
      this.#polygon(move(matrix, box.points), `outline box box-${box.state}`, { "data-box": index });
      if (box.score !== null && shown.on.has("texts") && box.state === "false_alarm") {
        this.#label(move(matrix, box.points), box.score.toFixed(2), "false_alarm");
      }
    });
  }

  #polygon(flat, kind, attributes) {
    if (flat.some((value) => !Number.isFinite(value))) return;
    this.#root.append(shape("polygon", { points: flat.join(" "), class: kind, ...attributes }));
  }

  #label(flat, text, state) {
    let best = 0;
    for (let at = 2; at < flat.length; at += 2) {
      if (flat[at + 1] + flat[at] * 0.2 < flat[best + 1] + flat[best] * 0.2) best = at;
    }
    if (!Number.isFinite(flat[best])) return;
    const label = shape("text", { class: `label ${state}`, x: flat[best], y: flat[best + 1] });
    label.textContent = text.length > 60 ? `${text.slice(0, 59)}…` : text;
    this.#root.append(label);
    this.#labels.push({ label, height: thickness(flat) });
  }

  #place() {
    const { x, y, zoom } = this.#stage;
    for (const world of this.#worlds) {
      world.style.transform = `translate(${x}px, ${y}px) scale(${zoom})`;
      world.classList.toggle("pixels", zoom * (devicePixelRatio || 1) >= 3);
    }
    this.#root.setAttribute("transform", `matrix(${zoom} 0 0 ${zoom} ${x} ${y})`);
    for (const { label, height } of this.#labels) {
      // as large as its line of text allows; what could not be read comes with zooming in
      const size = Math.min(LABEL.largest, height * zoom * 0.62);
      label.style.display = size < LABEL.smallest ? "none" : "";
      label.setAttribute("font-size", Math.max(size, LABEL.smallest) / zoom);
      label.setAttribute("dy", -3 / zoom);
    }
  }
}

// how high a line of text is: the area over the longest side
function thickness(flat) {
  let [area, longest] = [0, 1];
  for (let at = 0; at < flat.length; at += 2) {
    const next = (at + 2) % flat.length;
    area += flat[at] * flat[next + 1] - flat[next] * flat[at + 1];
    longest = Math.max(longest, Math.hypot(flat[next] - flat[at], flat[next + 1] - flat[at + 1]));
  }
  return Math.abs(area) / 2 / longest;
}
