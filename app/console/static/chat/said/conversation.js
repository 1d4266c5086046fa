// A conversation: its tree of turns, or two in a comparison, and what is known of it before they are read.

import { now } from "./answer.js";
import { newId, Tree } from "./tree.js";

/**
 * @typedef {import("./tree.js").Turn} Turn
 * @typedef {import("./tree.js").TurnRecord} TurnRecord
 * @typedef {Record<string, any>} Values of the settings
 * @typedef {{
 *   id: string, title: string, changedAt: number, isComparison: boolean, isRunning: boolean, draft: string,
 *   settings: Values, choices: Record<string, string>[],
 * }} Heading
 */

const MOST_CHARACTERS = 48;

export class Conversation {
  /** @param {Partial<Heading>} heading */
  constructor(heading) {
    this.id = heading.id ?? newId();
    this.isComparison = heading.isComparison ?? false;
    this.sides = this.isComparison ? [new Tree(), new Tree()] : [new Tree()];
    this.isLoaded = heading.id === undefined; // whether its turns are here
    this.title = "";
    this.draft = "";
    this.changedAt = now();
    this.isKept = heading.id !== undefined;
    /** @type {Values} */
    this.settings = {};
    /** @type {Record<string, string>[]} */
    this.choices = [];
    this.wasRunning = false;
    this.restore(heading);
  }

  // What another tab, or this one before, has written; a draft is only taken where none is here.
  /** @param {Partial<Heading>} heading */
  restore(heading) {
    this.title = heading.title ?? this.title;
    this.draft = heading.draft ?? this.draft;
    this.changedAt = heading.changedAt ?? this.changedAt;
    this.settings = heading.settings ?? this.settings;
    this.choices = heading.choices ?? this.choices;
    this.wasRunning = heading.isRunning ?? this.wasRunning;
  }

  /** @returns {Heading} */
  get heading() {
    const { id, title, changedAt, isComparison, isRunning, draft, settings } = this;
    const choices = this.isLoaded ? this.sides.map((side) => side.choices) : this.choices;
    return { id, title, changedAt, isComparison, isRunning, draft, settings, choices };
  }

  get isRunning() { return this.isLoaded ? this.sides.some((side) => side.isRunning) : this.wasRunning; }

  get isEmpty() { return this.isLoaded && this.sides.every((side) => side.turns.size === 0); }

  get name() {
    return this.title || firstWords(this.draft) || (this.isComparison ? "New comparison" : "New conversation");
  }

  /** @param {Turn} turn @param {number} side @returns {TurnRecord} */
  static recordOf({ id, parent, at, input, text, asked, answer }, side) {
    return { id, side, parent: parent?.id ?? null, at, input, text, asked, answer: answer.record };
  }

  // Take the turns that are kept: those that are new here, and those of which more is kept than is here.
  // Returns these.
  /** @param {TurnRecord[]} records @param {(turn: Turn) => boolean} isOwn whether it is written here, now */
  merge(records, isOwn) {
    const found = [];
    for (const record of records.toSorted((one, other) => one.at - other.at)) {
      const side = this.sides[record.side];
      const known = side.turns.get(record.id);
      if (known === undefined) {
        const turn = side.restore(record);
        if (turn !== null) found.push({ turn, side });
      } else if (!isOwn(known) && isMore(record.answer, known.answer)) {
        known.answer.restore(record.answer);
        found.push({ turn: known, side });
      }
    }
    if (!this.isLoaded) this.sides.forEach((side, index) => { side.choices = this.choices[index] ?? {}; });
    this.isLoaded = true;
    return found;
  }
}

/** @param {Turn["answer"]["record"]} one @param {Turn["answer"]["record"]} other */
const isMore = (one, other) => one.last > other.last || (one.endedAt !== null && other.endedAt === null);

// Words of a text from its beginning, that make a title.
/** @param {string} text */
export function firstWords(text) {
  const line = text.trim().split("\n", 1)[0];
  if (line.length <= MOST_CHARACTERS) return line;
  return `${line.slice(0, MOST_CHARACTERS).replace(/\s+\S*$/, "")}…`;
}
