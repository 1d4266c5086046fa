// What is asked of the service and comes back: answers over a line, kept as they grow.

import { now } from "../said/answer.js";
import { Line } from "./line.js";
import { requestOf, wholeRequestOf } from "./request.js";
import { wordsFor } from "../said/words.js";

/**
 * @typedef {import("../said/conversation.js").Conversation} Conversation
 * @typedef {import("../said/tree.js").Turn} Turn
 * @typedef {{
 *   grown(): void, ended(conversation: Conversation, turn: Turn): void,
 *   told(isOpen: boolean, words: string): void, refused(why: string): void,
 * }} Ear
 */

const LEFT = "The page was left before this was answered. Answer again.";

export class Exchange {
  // Of `ear`, `grown` hears of each event, `ended` of an answer that has, `told` how the line is, and `refused`
  // why the key does not hold any more.
  /** @param {import("../../api.js").Api} api @param {import("../keeping/kept.js").Kept} kept @param {Ear} ear */
  constructor(api, kept, ear) {
    this.api = api;
    this.kept = kept;
    this.ear = ear;
    this.isClosed = false;
    /** @type {string | null} */
    this.newest = null; // the response that ended last, to compare others with
    this.line = new Line(api.socket, {
      told: (isOpen, problem) => this.tell(isOpen, problem),
      find: (response) => api.response(response),
    });
  }

  close() {
    this.isClosed = true;
    this.line.close();
  }

  // Have a turn's answer come, from where it is.
  /** @param {Conversation} conversation @param {Turn} turn */
  carry(conversation, turn) {
    turn.answer.changed = () => this.changed(conversation, turn);
    this.line.carry(requestOf(turn, this.newest), turn.answer, () => wholeRequestOf(turn));
  }

  // A turn that was kept, or that another tab has asked.
  /** @param {Conversation} conversation @param {Turn} turn @param {boolean} isFirst */
  found(conversation, turn, isFirst) {
    const { answer } = turn;
    if (!answer.isRunning) return;
    if (answer.id !== null) this.carry(conversation, turn);
    else if (isFirst) answer.end("failed", LEFT, now());
  }

  /** @param {Conversation} conversation @param {Turn} turn */
  changed(conversation, turn) {
    const { answer } = turn;
    if (!this.kept.has(conversation)) {
      this.forgetAnswer(answer); // it was deleted before it was known which response this is
      return;
    }
    this.kept.grown(conversation, turn);
    if (answer.status === "completed") this.newest = answer.id;
    if (!answer.isRunning) this.ear.ended(conversation, turn);
    this.ear.grown();
  }

  /** @param {Conversation} conversation */
  stop(conversation) {
    for (const { answer } of turnsOf(conversation)) {
      if (answer.isRunning) this.line.stop(answer);
    }
  }

  // Forget a conversation, here and at the service.
  /** @param {Conversation} conversation */
  forget(conversation) {
    this.kept.remove(conversation);
    for (const { answer } of turnsOf(conversation)) this.forgetAnswer(answer);
  }

  /** @param {Turn["answer"]} answer */
  forgetAnswer(answer) {
    if (answer.id === null) return;
    answer.changed = () => {};
    this.api.forget(answer.id).catch(() => {}); // it may be gone already
  }

  /** @param {boolean} isOpen @param {Record<string, any> | null} problem */
  tell(isOpen, problem) {
    this.ear.told(isOpen, problem === null ? "" : wordsFor(problem));
    // A browser does not tell why a socket was refused.
    if (!isOpen) this.api.check().then(() => this.api.whose()).catch((error) => this.judge(error));
  }

  /** @param {{ status?: number, message: string }} error */
  judge({ status, message }) {
    if (this.isClosed || this.line.isOpen) return;
    if (status === 401 || status === 403) this.ear.refused(message);
    else this.ear.told(false, status === undefined ? "The service does not answer." : message);
  }
}

/** @param {Conversation} conversation */
const turnsOf = ({ sides }) => sides.flatMap((side) => [...side.turns.values()]);
