// What is written below a conversation: the next question with its pictures, and what may be done meanwhile.

import { fill, part, put } from "../dom.js";
import { asked, Pictures } from "./turns/pictures.js";

/**
 * @typedef {import("./said/tree.js").Input} Input
 * @typedef {{ say(input: Input, text: string): boolean, draft(text: string): void, stop(): void, goOn(): void }} Hands
 */

const MARKUP = `
<p class="notice" hidden><span></span> <button type="button" name="on">Go on</button></p>
<label for="question" class="unseen">Message</label>
<textarea id="question" rows="2" placeholder="Ask something"></textarea>
<div class="tools"><button name="send" class="primary">Send</button>
  <button type="button" name="stop" hidden>Stop</button>
  <button type="button" name="newest" hidden>Newest</button>
  <p class="news" role="alert"></p></div>`;

export class Composer {
  /** @param {HTMLFormElement} element @param {Hands} hands */
  constructor(element, hands) {
    fill(element, MARKUP);
    this.element = element;
    this.hands = hands;
    this.question = /** @type {HTMLTextAreaElement} */ (part(element, "#question"));
    this.pictures = new Pictures(element, (/** @type {string} */ why) => this.tell(why));
    this.pictures.chooser.hidden = true; // until it is known that the model sees
    this.isBusy = false;
    element.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.question.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    this.question.addEventListener("input", () => hands.draft(this.question.value));
    part(element, "[name=stop]").addEventListener("click", () => hands.stop());
    part(element, "[name=on]").addEventListener("click", () => hands.goOn());
  }

  /** @param {string} why */
  tell(why) { put(part(this.element, ".news"), why); }

  // Whether the model sees pictures.
  set sees(/** @type {boolean} */ sees) {
    this.pictures.sees = sees;
    this.pictures.chooser.hidden = !sees;
  }

  send() {
    const text = this.question.value.trim();
    const { urls } = this.pictures;
    if (this.isBusy || !(text || urls.length)) return;
    if (!this.hands.say(asked(text, urls), text)) return;
    this.write("");
  }

  // Another conversation's draft, or an empty one.
  /** @param {string} draft */
  write(draft) {
    this.question.value = draft;
    this.pictures.clear();
  }

  // `notice` is what there is to say of what stands above.
  /** @param {boolean} isBusy @param {{ words: string, canGoOn: boolean } | null} notice */
  show(isBusy, notice) {
    this.isBusy = isBusy;
    part(this.element, "[name=stop]").hidden = !isBusy;
    part(this.element, "[name=send]").disabled = isBusy;
    part(this.element, ".notice").hidden = isBusy || notice === null;
    put(part(this.element, ".notice span"), notice?.words ?? "");
    part(this.element, "[name=on]").hidden = !notice?.canGoOn;
  }
}
