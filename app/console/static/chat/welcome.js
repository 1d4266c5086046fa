// What stands where nothing is said yet: which model answers, how to have a better one, and how to begin.

import { button, fill, make, part, put } from "../dom.js";

/** @typedef {{ id: string, context_window: number, input_modalities: string[], description?: string }} Model */

const MARKUP = `
<h2>Ask something</h2>
<p class="answers"></p>
<p class="hint"></p>
<div class="tools"></div>`;
const EXAMPLES = [
  "Explain to a child why the sky is blue.",
  "Write a haiku about a wall that two gardens share.",
  "List three things to look for when buying a used bicycle.",
];

export class Welcome {
  /** @param {HTMLElement} element @param {(question: string) => void} chosen */
  constructor(element, chosen) {
    fill(element, MARKUP);
    this.element = element;
    part(element, ".tools").append(...EXAMPLES.map((example) => button(example, () => chosen(example))));
  }

  /** @param {boolean} isShown @param {Model | undefined} model */
  show(isShown, model) {
    this.element.hidden = !isShown;
    put(part(this.element, ".answers"), model ? `${model.id} answers.` : "");
    // Backticks are commands, as where such a text is written.
    const texts = (model?.description ?? "").split("`");
    part(this.element, ".hint").replaceChildren(...texts.map((text, index) => (index % 2 ? make("code", "", text) : text)));
  }
}
