// An answer as an element: each of its items in place, and what it took.

import { make, put } from "../../dom.js";
import { isCall } from "../said/answer.js";
import { Written } from "./markdown.js";

/** @typedef {import("./turn.js").Turn} Turn */
/** @typedef {Turn["answer"]} Answer */
/** @typedef {Answer["items"][number]} Item */
/** @typedef {{ element: HTMLElement, written: Written, show: (item: Item, answer: Answer) => void }} ItemView */

export class AnswerView {
  /** @type {(ItemView | null)[]} as the items are, null for what nobody needs to see */
  items = [];

  /** @param {Turn} turn @param {() => void} grown */
  constructor(turn, grown) {
    this.turn = turn;
    this.grown = () => {
      this.settle();
      grown();
    };
    this.element = make("div", "answer");
    Object.assign(this.element, { role: "group", ariaLabel: "Answer", ariaBusy: "true" });
    this.problem = make("p", "problem");
    this.figures = make("p", "figures");
    this.element.append(this.figures);
  }

  show() {
    const { answer } = this.turn;
    for (const [index, item] of answer.items.entries()) {
      if (item === undefined) continue;
      const known = this.items[index] ?? (this.items[index] = this.viewOf(item));
      known?.show(item, answer);
    }
    if (answer.problem) this.figures.before(this.problem);
    put(this.problem, answer.problem);
    const isWaiting = answer.isRunning && answer.firstAt === null;
    put(this.figures, answer.isRunning ? "…" : answer.figures);
    this.figures.hidden = answer.isRunning && !isWaiting;
    this.settle();
  }

  // It is busy until all that was written is shown.
  settle() {
    const isDone = !this.turn.answer.isRunning && this.items.every((item) => item?.written.isSettled ?? true);
    this.element.ariaBusy = String(!isDone);
  }

  /** @param {Item} item @returns {ItemView | null} */
  viewOf(item) {
    const made = isCall(item) ? call : { message, reasoning }[/** @type {string} */ (item.type)];
    if (made === undefined) return null;
    const view = made(this.grown, this.turn);
    this.figures.before(view.element);
    return view;
  }
}

/** @param {() => void} grown @returns {ItemView} */
function message(grown) {
  const element = make("div", "message");
  const written = new Written(element, grown);
  return {
    element,
    written,
    show: ({ text }, answer) => {
      const isHeld = !["text", undefined].includes(answer.response?.text?.format?.type);
      const value = isHeld ? prettily(text) : null;
      written.show(value ?? text, !answer.isRunning, value === null ? undefined : "json");
    },
  };
}

/** @param {() => void} grown @returns {ItemView} */
function reasoning(grown) {
  const element = make("details", "reasoning");
  const summary = make("summary");
  const thoughts = make("div", "thoughts");
  element.append(summary, thoughts);
  const written = new Written(thoughts, grown);
  return {
    element,
    written,
    show: ({ text, begunAt, endedAt = null }, answer) => {
      const until = endedAt ?? answer.endedAt;
      put(summary, until === null ? "Thinking…" : lasting(until - begunAt));
      written.show(text, until !== null);
    },
  };
}

// What is not known to have lasted, as it was not seen, is only said to have been.
/** @param {number} ms @returns {string} */
function lasting(ms) {
  return Number.isFinite(ms) ? `Thought for ${Math.max(1, Math.round(ms / 1000))} s` : "Thought";
}

/** @param {() => void} grown @param {Turn} turn @returns {ItemView} */
function call(grown, turn) {
  const element = make("div", "call");
  const line = make("p", "", "Calls ");
  const name = make("b");
  const state = make("span", "state");
  const body = make("div");
  line.append(name, state);
  element.append(line, body);
  const written = new Written(body, grown);
  return {
    element,
    written,
    show: (item, answer) => {
      put(name, item.name);
      put(state, stateOf(item, turn));
      const value = item.input === undefined ? prettily(item.arguments) : null;
      written.show(value ?? item.input ?? item.arguments, !answer.isRunning, item.input === undefined ? "json" : "");
    },
  };
}

/** @param {Item} item @param {Turn} turn @returns {string} */
function stateOf(item, turn) {
  if (item.status !== "completed") return turn.answer.isRunning ? "being written…" : "not finished";
  return turn.followers.length > 0 ? "answered" : "waits for its result";
}

/** @param {string} text @returns {string | null} */
function prettily(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}
