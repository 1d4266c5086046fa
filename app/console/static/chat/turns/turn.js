// A turn as an element that stays: what was asked, what was answered, and what can be done about it.

import { button, copier, make, put } from "../../dom.js";
import { AnswerView } from "./answer_view.js";
import { asked, picturesIn, shown } from "./pictures.js";

/** @typedef {import("../said/tree.js").Tree} Tree */
/** @typedef {import("../said/tree.js").Turn} Turn */
/** @typedef {(parent: Turn | null, input: Turn["input"], text: string) => void} Ask */
/** @typedef {{ ask: Ask, choose: (turn: Turn, index: number) => void, grown: () => void }} Hands */

export class Entry {
  state = ""; // what it shows

  /**
   * `ask` asks beside or behind it, `choose(turn, index)` shows another sibling.
   * @param {Turn} turn @param {Tree} conversation @param {Hands} hands
   */
  constructor(turn, conversation, { ask, choose, grown }) {
    this.turn = turn;
    this.conversation = conversation;
    this.ask = ask;
    this.element = make("li", "turn");
    this.answer = new AnswerView(turn, grown);
    this.edit = button("Edit", () => this.editor());
    this.question = this.asked();
    this.fork = forkOf((step) => choose(turn, conversation.siblings(turn).chosen + step));
    this.copy = copier("the answer", () => turn.answer.text);
    this.again = button("Answer again", () => ask(turn.parent, turn.input, turn.text));
    this.tools = make("div", "tools");
    this.tools.append(this.fork.element, this.copy, this.again);
    this.element.append(this.question, this.answer.element, this.tools);
  }

  // What has changed since it was shown last. Is it the last one, calls can be answered below it.
  /** @param {boolean} isLast */
  show(isLast) {
    const { turn, conversation } = this;
    const { followers, chosen } = conversation.siblings(turn);
    const isIdle = !conversation.isRunning;
    const { answer } = turn;
    const state = [answer.status, isLast, isIdle, followers.length, chosen, turn.followers.length].join();
    if (state === this.state && !answer.isRunning) return;
    this.state = state;
    this.answer.show();
    this.fork.show(chosen, followers.length);
    this.copy.hidden = !answer.text || navigator.clipboard === undefined;
    this.again.hidden = !isIdle;
    this.edit.hidden = !isIdle || !(typeof turn.input === "string" || picturesIn(turn.input).length > 0);
    const asksForResults = isLast && isIdle && answer.calls.length > 0;
    if (!asksForResults) this.results?.remove();
    else if (!this.results?.isConnected) this.element.append(this.results = resultsOf(turn, this.ask));
  }

  asked() {
    const question = make("div", "question");
    Object.assign(question, { role: "group", ariaLabel: "Question" });
    const urls = picturesIn(this.turn.input);
    if (urls.length > 0) question.append(shown(urls));
    question.append(this.edit, make("p", "said", this.turn.text));
    return question;
  }

  editor() {
    const { turn, ask } = this;
    const form = make("form");
    const field = document.createElement("textarea");
    Object.assign(field, { value: turn.text, rows: 3, ariaLabel: "Edited message" });
    const back = button("Leave it", () => {
      form.replaceWith(this.question);
      this.edit.focus();
    });
    const tools = make("div", "tools");
    tools.append(make("button", "", "Ask this instead"), back);
    form.append(field, tools);
    form.addEventListener("submit", (/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      const text = field.value.trim();
      if (!text) return;
      form.replaceWith(this.question);
      ask(turn.parent, asked(text, picturesIn(turn.input)), text);
    });
    this.question.replaceWith(form);
    field.focus();
  }
}

// Goes through the versions; `step(by)` to the next or the one before.
/** @param {(by: number) => void} step */
function forkOf(step) {
  const element = make("span", "fork");
  const back = button("‹", () => step(-1));
  const on = button("›", () => step(1));
  back.ariaLabel = "The version before";
  on.ariaLabel = "The next version";
  const place = make("span");
  element.append(back, place, on);
  /** @param {number} chosen @param {number} count */
  const show = (chosen, count) => {
    element.hidden = count < 2;
    put(place, `${chosen + 1} of ${count}`);
    back.disabled = chosen === 0;
    on.disabled = chosen === count - 1;
  };
  return { element, show };
}

// A form for what the tools that were called have given.
/** @param {Turn} turn @param {Ask} ask */
function resultsOf(turn, ask) {
  const form = make("form", "results");
  /** @type {{ call: Turn["answer"]["items"][number], field: HTMLTextAreaElement }[]} */
  const fields = turn.answer.calls.map((/** @type {Turn["answer"]["items"][number]} */ call) => {
    const label = make("label", "", `Result of ${call.name} `);
    const field = document.createElement("textarea");
    field.rows = 2;
    label.append(field);
    form.append(label);
    return { call, field };
  });
  form.append(make("button", "", "Send results"));
  form.addEventListener("submit", (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const input = fields.map(({ call, field }) => (
      { type: `${call.type}_output`, call_id: call.call_id, output: field.value }));
    ask(turn, input, fields.map(({ call, field }) => `${call.name}: ${field.value}`).join("\n"));
  });
  return form;
}
