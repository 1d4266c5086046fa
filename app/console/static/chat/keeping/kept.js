// All conversations of who is signed in: those here, and how they are kept, shared with other tabs, and forgotten.

import { Conversation } from "../said/conversation.js";
import { MOST, Shelf } from "./shelf.js";

/**
 * @typedef {import("../said/tree.js").Turn} Turn
 * @typedef {import("../said/conversation.js").Heading} Heading
 * @typedef {{
 *   found(conversation: Conversation, turn: Turn, isFirst: boolean): void, changed(conversation: Conversation): void,
 *   gone(conversation: Conversation): void, carries(turn: Turn): boolean, told(why: string): void,
 * }} Ear
 */

const REST_MS = 500; // between two writes of an answer that grows

export class Kept {
  // Of `ear`, `found` hears of turns that were kept or that another tab has asked or gone on with, `changed` and
  // `gone` of what another tab did, `told` why nothing is kept; `carries` says whether a turn is answered here.
  /** @param {Ear} ear */
  constructor(ear) {
    this.ear = ear;
    /** @type {Map<string, Conversation>} */
    this.conversations = new Map();
    /** @type {Shelf | null} */
    this.shelf = null;
    /** @type {Map<Turn, ReturnType<typeof setTimeout>>} */
    this.waiting = new Map(); // answers that are to be written
    /** @type {WeakSet<Turn>} */
    this.begun = new WeakSet(); // those of which other tabs know which response it is
  }

  /** @param {string} owner */
  async open(owner) {
    try {
      this.shelf = await Shelf.open(owner, ({ id, isGone }) => this.tried(isGone ? this.lose(id) : this.look(id)));
      for (const heading of await this.shelf.headings()) {
        this.conversations.set(heading.id, new Conversation(heading));
      }
    } catch (error) {
      this.ear.told(`Conversations last until the page is left, as this browser keeps nothing: ${error.message}`);
    }
  }

  // Go on with what was being answered when a page was left.
  async resume() {
    for (const one of this.conversations.values()) {
      if (one.wasRunning) await this.load(one);
    }
  }

  close() {
    for (const timer of this.waiting.values()) clearTimeout(timer);
    this.shelf?.close();
  }

  /** @param {boolean} isComparison */
  begin(isComparison) {
    const conversation = new Conversation({ isComparison });
    this.conversations.set(conversation.id, conversation);
    return conversation;
  }

  /** @param {Conversation} conversation */
  async load(conversation) {
    if (!conversation.isLoaded) await this.take(conversation, true);
  }

  /** @param {Conversation} conversation @param {boolean} isFirst */
  async take(conversation, isFirst) {
    const records = await this.shelf?.turns(conversation.id) ?? [];
    for (const { turn } of conversation.merge(records, (one) => this.ear.carries(one))) {
      this.ear.found(conversation, turn, isFirst);
    }
  }

  // Another tab has changed it.
  /** @param {string} id */
  async look(id) {
    const heading = await this.shelf?.heading(id);
    if (heading === undefined) return;
    const known = this.conversations.get(id) ?? new Conversation(heading);
    this.conversations.set(id, known);
    known.restore({ title: heading.title, changedAt: heading.changedAt, isRunning: heading.isRunning });
    if (known.isLoaded) await this.take(known, false);
    else known.restore(heading);
    this.ear.changed(known);
  }

  /** @param {string} id */
  async lose(id) {
    const known = this.conversations.get(id);
    this.conversations.delete(id);
    if (known !== undefined) this.ear.gone(known);
  }

  /** @param {Conversation} conversation */
  has(conversation) { return this.conversations.get(conversation.id) === conversation; }

  // Change and keep some of what is known of a conversation.
  /** @param {Conversation} conversation @param {Partial<Heading>} changes */
  put(conversation, changes) {
    if (!this.has(conversation)) return; // it was deleted
    conversation.restore(changes);
    if (conversation.isEmpty && !conversation.draft && !conversation.title) {
      if (conversation.isKept) this.tried(this.shelf?.remove(conversation.id));
      conversation.isKept = false;
      return;
    }
    const isNew = !conversation.isKept;
    conversation.isKept = true;
    this.tried(this.shelf?.put(conversation.id, isNew ? conversation.heading : changes, isNew));
    if (isNew) this.trim(conversation);
  }

  // The oldest of too many are forgotten.
  /** @param {Conversation} newest */
  trim(newest) {
    const all = [...this.conversations.values()].filter((one) => one !== newest && !one.isRunning);
    const old = all.toSorted((one, other) => other.changedAt - one.changedAt).slice(MOST - 1);
    for (const one of old) this.remove(one);
  }

  // A question has been asked.
  /** @param {Conversation} conversation @param {Turn} turn @param {number} side */
  asked(conversation, turn, side) {
    this.tried(this.shelf?.putTurn(conversation.id, Conversation.recordOf(turn, side)));
  }

  // Its answer has grown, or ended.
  /** @param {Conversation} conversation @param {Turn} turn */
  grown(conversation, turn) {
    const { answer } = turn;
    const isTold = !answer.isRunning || (answer.id !== null && !this.begun.has(turn));
    if (isTold) {
      this.begun.add(turn);
      clearTimeout(this.waiting.get(turn));
      this.write(conversation, turn, true);
    } else if (!this.waiting.has(turn)) {
      this.waiting.set(turn, setTimeout(() => this.write(conversation, turn, false), REST_MS));
    }
    if (!answer.isRunning) this.put(conversation, { isRunning: conversation.isRunning });
  }

  /** @param {Conversation} conversation @param {Turn} turn @param {boolean} isTold */
  write(conversation, turn, isTold) {
    this.waiting.delete(turn);
    this.tried(this.shelf?.putAnswer(conversation.id, turn.id, turn.answer.record, isTold));
  }

  /** @param {Conversation} conversation */
  remove(conversation) {
    this.conversations.delete(conversation.id);
    this.tried(this.shelf?.remove(conversation.id));
  }

  /** @param {string} text */
  async search(text) { return await this.shelf?.search(text) ?? new Set(); }

  /** @param {Promise<unknown> | undefined} work */
  tried(work) {
    work?.catch(({ name, message }) => {
      const why = name === "QuotaExceededError" ? "it has no room left." : message;
      this.ear.told(`This is not kept in this browser: ${why}`);
    });
  }
}
