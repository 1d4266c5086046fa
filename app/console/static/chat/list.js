// The conversations that there are, by when they were last asked something, to be searched and chosen from.

import { fill, make, part } from "../dom.js";

/** @typedef {import("./said/conversation.js").Conversation} Conversation */

const MARKUP = `
<button type="button" name="list" aria-expanded="false" aria-controls="conversations">Conversations</button>
<div id="conversations">
  <button type="button" name="new">New conversation</button>
  <button type="button" name="compare">New comparison</button>
  <input name="search" type="search" aria-label="Search conversations" placeholder="Search">
  <div class="groups"></div>
</div>`;
const DAY_MS = 24 * 3600 * 1000;
const REST_MS = 150; // of who writes what is searched for

export class List {
  // `search(text)` gives the ids of conversations that say a text.
  /** @param {HTMLElement} element @param {{ begin(): void, compare(): void, search(text: string): Promise<Set<string>> }} hands */
  constructor(element, { begin, compare, search }) {
    fill(element, MARKUP);
    this.element = element;
    this.search = search;
    /** @type {Set<string> | null} */
    this.found = null; // what was searched for, if anything
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.waiting = undefined;
    /** @type {[Conversation[], Conversation | null]} */
    this.last = [[], null];
    part(element, "[name=new]").addEventListener("click", begin);
    part(element, "[name=compare]").addEventListener("click", compare);
    part(element, "[name=list]").addEventListener("click", () => this.open(!this.isOpen));
    part(element, "[name=search]").addEventListener("input", () => {
      clearTimeout(this.waiting);
      this.waiting = setTimeout(() => this.look(), REST_MS);
    });
  }

  get isOpen() { return this.element.classList.contains("open"); }

  // Where there is room for the composer alone, the list is behind its button.
  open(isOpen = false) {
    this.element.classList.toggle("open", isOpen);
    part(this.element, "[name=list]").ariaExpanded = String(isOpen);
  }

  async look() {
    const text = part(this.element, "[name=search]").value.trim().toLowerCase();
    const found = text ? await this.search(text) : null;
    for (const { id, name } of this.last[0]) {
      if (name.toLowerCase().includes(text)) found?.add(id);
    }
    this.found = found;
    this.show(...this.last);
  }

  /** @param {Conversation[]} conversations @param {Conversation | null} current */
  show(conversations, current) {
    this.last = [conversations, current];
    const { found } = this;
    const shown = found === null ? conversations : conversations.filter(({ id }) => found.has(id));
    const groups = Map.groupBy(shown.toSorted((one, other) => other.changedAt - one.changedAt), ageOf);
    const elements = [...groups].flatMap(([age, members]) => {
      const list = make("ul");
      list.append(...members.map((one) => entryOf(one, one === current)));
      return [make("h2", "", age), list];
    });
    const isMissing = found !== null && found.size === 0;
    const told = isMissing ? [make("p", "hint", "Nothing is found.")] : elements;
    const place = part(this.element, ".groups");
    const isAsBefore = told.length === place.children.length
      && told.every((one, index) => one.isEqualNode(place.children[index]));
    if (!isAsBefore) place.replaceChildren(...told);
  }
}

/** @param {Conversation} conversation */
export const linkOf = ({ id }) => `#chat/${id}`;

/** @param {Conversation} conversation @param {boolean} isCurrent */
function entryOf(conversation, isCurrent) {
  const link = make("a", "", conversation.name + (conversation.isRunning ? " …" : ""));
  link.href = linkOf(conversation);
  if (isCurrent) link.ariaCurrent = "page";
  const item = make("li");
  item.append(link);
  return item;
}

/** @param {Conversation} conversation */
function ageOf({ changedAt }) {
  const days = (new Date().setHours(0, 0, 0, 0) - new Date(changedAt).setHours(0, 0, 0, 0)) / DAY_MS;
  if (days < 0.5) return "Today";
  if (days < 1.5) return "Yesterday";
  return days < 7.5 ? "Last seven days" : "Earlier";
}
