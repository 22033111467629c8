// Zoom and pan by mouse, touch and keyboard.

const MAX_ZOOM = 40;

export class Stage {
  #element;
  #frame = { width: 1, height: 1 };
  #pointers = new Map();
  #fitted = true;
  #listeners = new Set();
  x = 0;
  y = 0;
  zoom = 1;

  constructor(element) {
    this.#element = element;
    element.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    element.addEventListener("pointerdown", (event) => this.#down(event));
    element.addEventListener("pointermove", (event) => this.#move(event));
    for (const name of ["pointerup", "pointercancel"]) {
      element.addEventListener(name, (event) => this.#up(event));
    }
    element.addEventListener("dblclick", (event) => {
      if (event.target.closest("button")) return;
      const [x, y] = this.#local(event);
      if (this.#fitted) this.zoomTo(Math.max(1, this.#fitZoom() * 2.5), x, y);
      else this.fit();
    });
    new ResizeObserver(() => {
      if (this.#fitted) this.fit();
      else this.#changed();
    }).observe(element);
  }

  onChange(listener) {
    this.#listeners.add(listener);
  }

  // the same spot at the same scale as another stage, which may show a frame of another size
  follow(other) {
    this.#fitted = false;
    this.zoom = (other.zoom * other.#frame.width) / this.#frame.width;
    [this.x, this.y] = [other.x, other.y];
    for (const listener of this.#listeners) listener(this);
  }

  setFrame(width, height, { keep = false } = {}) {
    const old = this.#frame;
    this.#frame = { width, height };
    if (!keep || this.#fitted) this.fit();
    else if (old.width !== width || old.height !== height) {
      // the same spot of another frame of the same picture
      const [cx, cy] = [this.#element.clientWidth / 2, this.#element.clientHeight / 2];
      const share = [(cx - this.x) / this.zoom / old.width, (cy - this.y) / this.zoom / old.height];
      this.zoom *= old.width / width;
      this.x = cx - share[0] * width * this.zoom;
      this.y = cy - share[1] * height * this.zoom;
      this.#changed();
    }
  }

  fit() {
    this.#fitted = true;
    this.zoom = this.#fitZoom();
    this.x = (this.#element.clientWidth - this.#frame.width * this.zoom) / 2;
    this.y = (this.#element.clientHeight - this.#frame.height * this.zoom) / 2;
    this.#changed();
  }

  fitTo({ left, top, right, bottom }) {
    const [width, height] = [this.#element.clientWidth, this.#element.clientHeight];
    const zoom = Math.min(width / (right - left + 1), height / (bottom - top + 1)) * 0.5;
    this.#fitted = false;
    this.zoom = this.#bounded(zoom);
    this.x = width / 2 - ((left + right) / 2) * this.zoom;
    this.y = height / 2 - ((top + bottom) / 2) * this.zoom;
    this.#changed();
  }

  zoomBy(factor, x = this.#element.clientWidth / 2, y = this.#element.clientHeight / 2) {
    this.zoomTo(this.zoom * factor, x, y);
  }

  zoomTo(zoom, x = this.#element.clientWidth / 2, y = this.#element.clientHeight / 2) {
    const next = this.#bounded(zoom);
    this.x = x - ((x - this.x) * next) / this.zoom;
    this.y = y - ((y - this.y) * next) / this.zoom;
    this.zoom = next;
    this.#fitted = false;
    this.#changed();
  }

  panBy(dx, dy) {
    this.x += dx;
    this.y += dy;
    this.#fitted = false;
    this.#changed();
  }

  #fitZoom() {
    const margin = this.#element.clientWidth > 600 ? 24 : 8;
    const width = Math.max(40, this.#element.clientWidth - 2 * margin);
    const height = Math.max(40, this.#element.clientHeight - 2 * margin);
    return Math.min(width / this.#frame.width, height / this.#frame.height, 8);
  }

  #bounded(zoom) {
    return Math.min(MAX_ZOOM, Math.max(this.#fitZoom() / 4, zoom));
  }

  #changed() {
    // some of the picture stays in sight
    const [width, height] = [this.#element.clientWidth, this.#element.clientHeight];
    const keep = Math.min(60, width / 4, height / 4);
    this.x = Math.min(width - keep, Math.max(keep - this.#frame.width * this.zoom, this.x));
    this.y = Math.min(height - keep, Math.max(keep - this.#frame.height * this.zoom, this.y));
    for (const listener of this.#listeners) listener(this);
  }

  #local(event) {
    const box = this.#element.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  #wheel(event) {
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    const strength = event.ctrlKey ? 0.01 : 0.0016; // a pinch on a touchpad comes as ctrl + wheel
    this.zoomBy(Math.exp(-event.deltaY * unit * strength), ...this.#local(event));
  }

  #down(event) {
    if (event.button || event.target.closest("button, [role=slider]")) return;
    this.#element.setPointerCapture(event.pointerId);
    this.#pointers.set(event.pointerId, this.#local(event));
    this.#element.classList.add("dragging");
  }

  #move(event) {
    const before = this.#pointers.get(event.pointerId);
    if (!before) return;
    const now = this.#local(event);
    if (this.#pointers.size === 1) this.panBy(now[0] - before[0], now[1] - before[1]);
    else if (this.#pointers.size === 2) {
      const [, other] = [...this.#pointers].find(([id]) => id !== event.pointerId);
      const old = Math.hypot(before[0] - other[0], before[1] - other[1]);
      const next = Math.hypot(now[0] - other[0], now[1] - other[1]);
      this.panBy((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
      if (old > 10) this.zoomBy(next / old, (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
    }
    this.#pointers.set(event.pointerId, now);
  }

  #up(event) {
    this.#pointers.delete(event.pointerId);
    if (!this.#pointers.size) this.#element.classList.remove("dragging");
  }
}
