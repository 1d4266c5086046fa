// A turn as an element: what was asked, what was answered, and what can be done about it.

import { isCall } from "./conversation.js";
import { button, copier, make } from "../dom.js";
import { rendered } from "./markdown.js";
import { asked, picturesIn, shown } from "./pictures.js";

// `ask(parent, input, text)` asks beside or behind it, `choose(turn, index)` shows another sibling.
export function turnOf(turn, conversation, { isLast, ask, choose }) {
  const entry = document.createElement("li");
  entry.className = "turn";
  const isIdle = !conversation.isRunning;
  entry.append(questionOf(turn, isIdle, ask), answerOf(turn.answer));
  const siblings = conversation.siblings(turn);
  const tools = make("div", "tools");
  if (siblings.followers.length > 1) tools.append(...forkOf(siblings, choose, turn));
  const text = () => turn.answer.items.map((item) => (item?.type === "message" ? item.text : "")).join("");
  if (text()) tools.append(copier("the answer", text));
  if (isIdle) {
    tools.append(button("Answer again", () => ask(turn.parent, turn.input, turn.text)));
  }
  entry.append(tools);
  if (isLast && isIdle && turn.answer.calls.length > 0) entry.append(resultsOf(turn, ask));
  return entry;
}

function questionOf(turn, isIdle, ask) {
  const question = make("div", "question");
  const urls = picturesIn(turn.input);
  if (urls.length > 0) question.append(shown(urls));
  question.append(make("p", "said", turn.text));
  if (isIdle && (typeof turn.input === "string" || urls.length > 0)) {
    question.append(button("Edit", () => question.replaceChildren(editorOf(turn, question, ask))));
  }
  return question;
}

function editorOf(turn, question, ask) {
  const form = document.createElement("form");
  const field = document.createElement("textarea");
  field.value = turn.text;
  field.rows = 3;
  field.setAttribute("aria-label", "Edited message");
  form.append(field, make("button", "", "Ask this instead"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = field.value.trim();
    if (text) ask(turn.parent, asked(text, picturesIn(turn.input)), text);
  });
  requestAnimationFrame(() => field.focus());
  return form;
}

function forkOf(siblings, choose, turn) {
  const count = siblings.followers.length;
  const at = siblings.chosen;
  const back = button("‹", () => choose(turn, at - 1));
  const on = button("›", () => choose(turn, at + 1));
  back.setAttribute("aria-label", "The version before");
  on.setAttribute("aria-label", "The next version");
  back.disabled = at === 0;
  on.disabled = at === count - 1;
  return [back, make("span", "", `${at + 1} of ${count}`), on];
}

function answerOf(answer) {
  const element = make("div", "answer");
  element.setAttribute("aria-busy", String(answer.isRunning));
  for (const item of answer.items) {
    if (item?.type === "message") element.append(messageOf(item.text, answer));
    else if (isCall(item)) element.append(callOf(item));
    else if (item?.type === "reasoning") element.append(reasoningOf(item));
  }
  if (answer.isRunning && answer.firstAt === null) element.append(make("p", "figures", "…"));
  if (answer.problem) element.append(make("p", "problem", answer.problem));
  if (!answer.isRunning) element.append(make("p", "figures", answer.figures));
  return element;
}

function messageOf(text, answer) {
  const message = make("div", "message");
  const isHeld = !["text", undefined].includes(answer.response?.text?.format?.type);
  const value = isHeld ? prettily(text) : null;
  if (value === null) message.append(rendered(text));
  else message.append(block(value));
  return message;
}

function callOf(item) {
  const call = make("div", "call");
  const state = item.status === "completed" ? "" : " (being written)";
  const text = item.input ?? prettily(item.arguments) ?? item.arguments;
  call.append(make("p", "", `Calls ${item.name}${state}`), block(text));
  return call;
}

function reasoningOf(item) {
  const details = make("details", "reasoning");
  details.append(make("summary", "", "Reasoning"), make("p", "", item.text));
  return details;
}

// A form for what the tools that were called have given.
function resultsOf(turn, ask) {
  const form = make("form", "results");
  const fields = turn.answer.calls.map((call) => {
    const label = make("label", "", `Result of ${call.name} `);
    const field = document.createElement("textarea");
    field.rows = 2;
    label.append(field);
    form.append(label);
    return [call, field];
  });
  form.append(make("button", "", "Send results"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const input = fields.map(([call, { value }]) => (
      { type: `${call.type}_output`, call_id: call.call_id, output: value }));
    ask(turn, input, fields.map(([call, { value }]) => `${call.name}: ${value}`).join("\n"));
  });
  return form;
}

function prettily(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

function block(text) {
  const element = make("pre");
  element.tabIndex = 0;
  element.append(make("code", "", text));
  return element;
}
