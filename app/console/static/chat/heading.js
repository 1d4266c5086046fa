// What stands over a conversation: its title, and what may be done with all of it; and what answers in it.

import { button, fill, grave, make, part, put } from "../dom.js";

/**
 * @typedef {{ rename(title: string): void, save(kind: "md" | "json"): void, remove(): void }} Hands
 */

const MARKUP = `
<h2></h2>
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
      Object.assign(button("Markdown", () => hands.save("md")), { ariaLabel: "Save as Markdown" }),
      Object.assign(button("JSON", () => hands.save("json")), { ariaLabel: "Save as JSON" }),
      grave("Delete", () => hands.remove()),
    ];
    for (const tool of tools) tool.className = "quiet";
    part(element, ".tools").append(...tools);
  }

  // In place: Enter, or to leave the field, keeps it, and Escape does not.
  rename() {
    const field = Object.assign(make("input"), { value: this.title.textContent, ariaLabel: "Title", maxLength: 100 });
    let isOver = false; // to take the field away leaves it, too
    const end = (/** @type {boolean} */ isKept) => {
      if (isOver) return;
      isOver = true;
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

  /** @param {string} title @param {boolean} isEmpty */
  show(title, isEmpty) {
    put(this.title, title);
    part(this.element, ".tools").hidden = isEmpty;
  }
}

// What answers, and for whom: `named` as a request or a response has it, `served` without an adapter.
/** @param {string} named @param {string} served @param {string} tenant */
export function metaOf(named, served, tenant) {
  const [model, adapter] = named.split(":");
  return [model || served, adapter && `adapter ${adapter}`, tenant && `as ${tenant}`].filter(Boolean).join(" · ");
}
