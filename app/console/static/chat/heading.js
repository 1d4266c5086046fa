// What stands over a conversation: its title, what answers, and what may be done with all of it.

import { button, fill, grave, make, part, put } from "../dom.js";

/**
 * @typedef {{ rename(title: string): void, save(kind: "md" | "json"): void, remove(): void }} Hands
 */

const MARKUP = `
<div class="title"><h2></h2><p class="meta"></p></div>
<div class="tools"></div>`;

export class ConversationHeading {
  /** @param {HTMLElement} element @param {Hands} hands */
  constructor(element, hands) {
    fill(element, MARKUP);
    this.element = element;
    this.hands = hands;
    this.title = part(element, "h2");
    const tools = [
      button("Rename", () => this.rename()),
      button("Save as Markdown", () => hands.save("md")),
      button("Save as JSON", () => hands.save("json")),
      grave("Delete", () => hands.remove()),
    ];
    for (const tool of tools) tool.className = "quiet";
    part(element, ".tools").append(...tools);
  }

  // In place: Enter, or to leave the field, keeps it, and Escape does not.
  rename() {
    const field = Object.assign(make("input"), { value: this.title.textContent, ariaLabel: "Title", maxLength: 100 });
    const end = (/** @type {boolean} */ isKept) => {
      if (!field.isConnected) return;
      field.replaceWith(this.title);
      if (isKept && field.value.trim()) this.hands.rename(field.value.trim());
    };
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.stopPropagation();
      end(event.key === "Enter");
    });
    field.addEventListener("blur", () => end(true));
    this.title.replaceWith(field);
    field.select();
  }

  /** @param {string} title @param {string} meta @param {boolean} isEmpty */
  show(title, meta, isEmpty) {
    put(this.title, title);
    put(part(this.element, ".meta"), meta);
    part(this.element, ".tools").hidden = isEmpty;
  }
}
