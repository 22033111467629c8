// The watch over the store's file: a banner when it was replaced, grew, or went away.

import * as api from "./api.js";
import { find } from "./dom.js";

const EVERY = 2500;

export class Watch {
  #onReload;
  #state = null;
  #shown = "";

  constructor(onReload) {
    this.#onReload = onReload;
    find("banner-reload").addEventListener("click", () => this.#reload());
    api.onTrouble((error) => this.#trouble(error));
    setInterval(() => this.#look(), EVERY);
    document.addEventListener("visibilitychange", () => this.#look());
  }

  setState(state) {
    this.#state = state;
  }

  async #look() {
    if (document.hidden || this.#state === null) return;
    let answer;
    try {
      answer = await api.get("/api/state");
    } catch {
      return; // the banner says it already
    }
    const { kind, message } = answer.news;
    if (kind !== "same") this.#show(message, { reload: kind === "replaced" || kind === "grown" });
    else if (answer.state !== this.#state) this.#show("Another window shows a newer state.", { reload: true });
    else this.#hide();
  }

  #trouble(error) {
    this.#show(error.message, { reload: error.kind === "changed" });
  }

  async #reload() {
    find("banner-reload").disabled = true;
    try {
      const facts = await api.post("/api/reload");
      this.#hide();
      this.#onReload(facts);
    } catch (error) {
      this.#show(error.message, { reload: true });
    } finally {
      find("banner-reload").disabled = false;
    }
  }

  #show(message, { reload }) {
    find("banner-reload").hidden = !reload;
    if (this.#shown === message) return;
    this.#shown = message;
    find("banner-text").textContent = message;
    find("banner").hidden = false;
  }

  #hide() {
    this.#shown = "";
    find("banner").hidden = true;
  }
}
