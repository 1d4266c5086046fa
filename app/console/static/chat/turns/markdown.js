// What a model has written, as elements that can do nothing but be read.

import { beside, rest } from "../../dom.js";
import { patch } from "./patch.js";

/** @typedef {import("../reading/tree.js").Part} Part */
/** @typedef {{ text: string, language?: string | undefined, isWhole: boolean }} Wanted */
/** @typedef {{ state: "reading" | "fetching" } | { state: "read", parts: Part[] }} Told */

const PATIENCE_MS = 4000; // what takes longer to be read was written to take long: it stays plain
let count = 0;

// A text in an element. What is shown while another is read is the last one of those.
export class Written {
  key = ++count;
  /** @type {Wanted | null} */
  wanted = null;
  /** @type {Wanted | null} */
  shown = null;
  isReading = false;
  isPlain = false;

  /** @param {HTMLElement} element @param {() => void} grown */
  constructor(element, grown) {
    this.element = element;
    this.grown = grown;
  }

  // Whether what was to be shown last is what is there.
  get isSettled() { return !this.isReading && this.wanted === this.shown; }

  /** @param {string} text Markdown, unless `language` says what it is written in @param {boolean} isWhole @param {string} [language] */
  show(text, isWhole, language) {
    const { wanted } = this;
    if (wanted?.text === text && wanted.isWhole === isWhole && wanted.language === language) return;
    this.wanted = { text, isWhole, language };
    if (!this.isReading) this.read();
  }

  async read() {
    this.isReading = true;
    while (this.wanted !== null && this.wanted !== this.shown) {
      const { wanted } = this;
      const parts = this.isPlain ? null : await reader.read({ key: this.key, ...wanted });
      this.isPlain = parts === null;
      const begun = performance.now();
      await patch(this.element, parts ?? [["pre", { tabindex: "0" }, wanted.text]], this.grown);
      this.shown = wanted;
      if (wanted !== this.wanted) await rest(performance.now() - begun); // the page has other things to do
    }
    this.isReading = false;
    this.grown();
  }
}

// Has texts read beside the page, one at a time.
class Reader {
  /** @type {Worker | null} */
  worker = null;
  /** @type {{ asked: object, done: (parts: Part[] | null) => void }[]} */
  queue = [];
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  patience = undefined;

  /** Null for what cannot be read in time. @param {{ key: number } & Wanted} asked @returns {Promise<Part[] | null>} */
  read(asked) {
    return new Promise((done) => {
      this.queue.push({ asked, done });
      if (this.queue.length === 1) this.next();
    });
  }

  next() {
    const [first] = this.queue;
    if (first === undefined) return;
    this.worker ??= this.begin();
    this.worker.postMessage(first.asked);
  }

  begin() {
    const worker = beside(new URL("../reading/worker.js", import.meta.url));
    worker.addEventListener("message", ({ data }) => this.hear(data));
    worker.addEventListener("error", () => this.giveUp());
    return worker;
  }

  /** @param {Told} told */
  hear(told) {
    clearTimeout(this.patience);
    if (told.state === "reading") this.patience = setTimeout(() => this.giveUp(), PATIENCE_MS);
    if (told.state === "read") this.end(told.parts);
  }

  giveUp() {
    clearTimeout(this.patience);
    this.worker?.terminate();
    this.worker = null;
    this.end(null);
  }

  /** @param {Part[] | null} parts */
  end(parts) {
    this.queue.shift()?.done(parts);
    this.next();
  }
}

const reader = new Reader();
