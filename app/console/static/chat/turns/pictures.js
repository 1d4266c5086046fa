// Pictures of a question: pasted, dropped or chosen, shown before it is sent, and in its turn.

import { button, make } from "../../dom.js";

const KINDS = ["image/png", "image/jpeg", "image/webp", "image/gif"];

/** @typedef {{ type: string, image_url?: string, text?: string }} Content */
/** @typedef {string | { type?: string, role?: string, content?: Content[] }[]} Input */

// The input that shows pictures, as URLs, and says a text.
/** @param {string} text @param {string[]} urls @returns {Input} */
export function asked(text, urls) {
  if (urls.length === 0) return text;
  /** @type {Content[]} */
  const content = urls.map((url) => ({ type: "input_image", image_url: url }));
  if (text) content.push({ type: "input_text", text });
  return [{ role: "user", content }];
}

// The pictures of an input, as URLs.
/** @param {Input} input @returns {string[]} */
export function picturesIn(input) {
  if (typeof input === "string") return [];
  const parts = input.flatMap(({ content }) => content ?? []);
  return parts.flatMap(({ type, image_url: url }) => (type === "input_image" && url ? [url] : []));
}

/** @param {string[]} urls */
export function shown(urls) {
  const list = make("div", "pictures");
  list.append(...urls.map((url, index) => image(url, `Picture ${index + 1}`)));
  return list;
}

// What is to be sent with the next question; `told` hears of what is no picture.
export class Pictures {
  /** @type {string[]} */
  urls = [];
  sees = true; // whether the model does, as far as it is known

  /** @param {HTMLElement} composer @param {(why: string) => void} told */
  constructor(composer, told) {
    this.told = told;
    this.list = make("div", "pictures");
    this.chooser = Object.assign(document.createElement("input"), {
      type: "file", accept: KINDS.join(), multiple: true, ariaLabel: "Pictures to show",
    });
    const tools = composer.querySelector(".tools");
    tools?.before(this.list);
    tools?.append(this.chooser);
    this.chooser.addEventListener("change", () => {
      this.add(this.chooser.files);
      this.chooser.value = ""; // so that the same one can be chosen again
    });
    composer.addEventListener("paste", (event) => {
      if (this.add(event.clipboardData?.files)) event.preventDefault();
    });
    composer.addEventListener("dragover", (event) => event.preventDefault());
    composer.addEventListener("drop", (event) => {
      if (this.add(event.dataTransfer?.files)) event.preventDefault();
    });
  }

  // Returns whether there were files.
  /** @param {FileList | null | undefined} files */
  add(files) {
    if (!files) return false;
    if (!this.sees && files.length > 0) this.told("This model sees no pictures: they were not taken.");
    else for (const file of files) {
      if (KINDS.includes(file.type)) this.read(file);
      else this.told(`${file.name} is no picture that can be shown: PNG, JPEG, WebP or GIF.`);
    }
    return files.length > 0;
  }

  /** @param {File} file */
  read(file) {
    const reader = new FileReader();
    reader.addEventListener("load", () => {
      const url = String(reader.result);
      this.urls.push(url);
      const entry = make("span", "picture");
      entry.append(image(url, file.name), button("Remove", () => {
        this.urls.splice(this.urls.indexOf(url), 1);
        entry.remove();
      }));
      this.list.append(entry);
    });
    reader.readAsDataURL(file);
  }

  clear() {
    this.urls = [];
    this.list.replaceChildren();
  }
}

/** @param {string} url @param {string} alt */
function image(url, alt) {
  return Object.assign(document.createElement("img"), { src: url, alt });
}
