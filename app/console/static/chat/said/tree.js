// What was asked and answered, as a tree: a question that was edited, and one that is answered again, are siblings.

import { Answer } from "./answer.js";

/**
 * @typedef {string | Record<string, any>[]} Input of a request
 * @typedef {{
 *   id: string, side: number, parent: string | null, at: number, input: Input, text: string,
 *   asked: Record<string, any>, answer: Answer["record"],
 * }} TurnRecord
 * @typedef {{ followers: Turn[], chosen: number }} Fork what may follow a turn, or begin
 */

export const newId = () => [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

// A question, or results of calls, and the answer to it.
export class Turn {
  /**
   * @param {Turn | null} parent
   * @param {Input} input
   * @param {string} text
   * @param {Record<string, any>} asked the request, but for its input and what it goes on from
   */
  constructor(parent, input, text, asked, answer = new Answer()) {
    this.id = newId();
    this.at = Math.max(answer.begunAt, (parent?.at ?? 0) + 1); // behind it by whichever tab's clock
    this.parent = parent;
    this.input = input;
    this.text = text;
    this.asked = asked;
    this.answer = answer;
    /** @type {Turn[]} */
    this.followers = [];
    this.chosen = 0;
  }

  // The turn that its conversation begins with on the way here.
  /** @returns {Turn} */
  get first() { return this.parent?.first ?? this; }
}

export class Tree {
  constructor() {
    /** @type {Turn[]} */
    this.followers = []; // turns that it may begin with
    this.chosen = 0;
    /** @type {Map<string, Turn>} */
    this.turns = new Map();
  }

  // The turns that are shown: at each fork the chosen one.
  /** @returns {Turn[]} */
  path() {
    const turns = [];
    /** @type {Fork} */
    let at = this;
    while (at.followers.length > 0) {
      const turn = at.followers[at.chosen];
      turns.push(turn);
      at = turn;
    }
    return turns;
  }

  // What a new question goes on behind: nothing goes on from what has failed, it is asked instead.
  /** @returns {Turn | null} */
  get end() {
    const last = this.path().at(-1) ?? null;
    return last?.answer.status === "failed" ? last.parent : last;
  }

  // Whether one is being answered, be it one that is not shown.
  get isRunning() { return [...this.turns.values()].some(({ answer }) => answer.isRunning); }

  // Go on behind `parent` (null: from the beginning), beside what may have followed it already.
  /** @param {Turn | null} parent @param {Input} input @param {string} text @param {Record<string, any>} asked */
  follow(parent, input, text, asked) {
    const turn = new Turn(parent, input, text, asked);
    this.add(turn);
    const at = this.siblings(turn);
    at.chosen = at.followers.length - 1;
    return turn;
  }

  /** @param {Turn} turn */
  add(turn) {
    this.siblings(turn).followers.push(turn);
    this.turns.set(turn.id, turn);
  }

  // A turn that was kept, behind its parent, which is here.
  /** @param {TurnRecord} record */
  restore({ id, at, parent, input, text, asked, answer }) {
    const before = parent === null ? null : this.turns.get(parent);
    if (before === undefined) return null;
    const turn = new Turn(before, input, text, asked);
    Object.assign(turn, { id, at });
    turn.answer.restore(answer);
    this.add(turn);
    return turn;
  }

  /** @param {Turn} turn @returns {Fork} */
  siblings(turn) { return turn.parent ?? this; }

  // Which turn is shown at each fork, by what it follows; `""` is the beginning.
  /** @returns {Record<string, string>} */
  get choices() {
    const forks = this.forks.filter(([, { followers }]) => followers.length > 1);
    return Object.fromEntries(forks.map(([id, { followers, chosen }]) => [id, followers[chosen].id]));
  }

  // Where nothing was chosen, the newest is shown.
  set choices(choices) {
    for (const [id, fork] of this.forks) {
      const index = fork.followers.findIndex((one) => one.id === choices[id]);
      fork.chosen = index < 0 ? Math.max(0, fork.followers.length - 1) : index;
    }
  }

  /** @returns {[string, Fork][]} */
  get forks() { return [["", this], ...this.turns]; }
}
