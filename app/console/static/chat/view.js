// Chats over one socket. `mount(element, api)` returns what takes them away.

import { Conversation } from "./conversation.js";
import { askForKey } from "./key.js";
import { button, make } from "../dom.js";
import { Line } from "./line.js";
import { Settings } from "./settings.js";
import { turnOf } from "./turn.js";

const REST = 4; // times as long as the drawing took
const MARKUP = `
<div class="line">
  <p class="state" role="status"></p>
  <button type="button" name="key" hidden>Another key</button>
  <button type="button" name="cut" title="Break the socket, as a bad network would">Cut the line</button>
</div>
<div class="chat">
  <nav class="conversations" aria-label="Conversations">
    <button type="button" name="new">New conversation</button><ul></ul>
  </nav>
  <div class="conversation">
    <ol class="turns" aria-label="Turns"></ol>
    <form class="composer">
      <label for="question">Message</label>
      <textarea id="question" rows="3"></textarea>
      <div class="tools"><button name="send">Send</button>
        <button type="button" name="stop" hidden>Stop</button>
        <p class="news" role="alert"></p></div>
    </form>
    <details class="settings"></details>
  </div>
</div>`;

export function mount(element, api) {
  let chats = null;
  const ask = () => {
    chats?.close();
    chats = null;
    askForKey(element, api, begin);
  };
  const begin = () => { chats = new Chats(element, api, ask); };
  if (api.chatKey === null) ask();
  else begin();
  return () => {
    chats?.close();
    element.replaceChildren();
  };
}

class Chats {
  // `changeKey` asks an operator for another key.
  constructor(element, api, changeKey) {
    this.api = api;
    element.innerHTML = MARKUP;
    this.part = (name) => element.querySelector(name);
    this.part("[name=key]").hidden = !api.isOperator;
    this.part("[name=key]").addEventListener("click", changeKey);
    this.settings = new Settings(this.part(".settings"));
    this.conversations = [];
    this.restMs = 0;
    this.newest = null; // the response that ended last, to compare others with
    this.listen();
    this.line = new Line(api.socket, (isOpen, why) => this.tell(isOpen, why));
    element.line = this.line; // to be read by who wants to know what was said
    this.begin();
    this.offer("prompts", this.api.prompts(), "registered prompts");
    this.offer("models", this.api.models(), "models");
  }

  close() { this.line.close(); }

  listen() {
    const on = (name, kind, heard) => this.part(name).addEventListener(kind, heard);
    on("[name=new]", "click", () => this.begin());
    on("[name=cut]", "click", () => this.line.cut());
    on("[name=stop]", "click", () => this.line.stop(this.current.lane));
    on(".composer", "submit", (event) => {
      event.preventDefault();
      this.say();
    });
    on("#question", "keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.say();
    });
  }

  async offer(list, names, what) {
    try {
      this.settings.offer(list, await names);
    } catch ({ message }) {
      this.part(".composer .news").textContent = `The ${what} are not listed: ${message}`;
    }
  }

  tell(isOpen, why) {
    const words = isOpen ? "Connected." : "The line is broken; it is opened again.";
    this.part(".state").textContent = why ? `${words} ${why}` : words;
    this.part("[name=cut]").disabled = !isOpen;
    // A browser does not tell why a socket was refused.
    if (!isOpen) this.api.check().catch(({ message }) => {
      this.part(".state").textContent = `The line is broken: ${message}`;
    });
  }

  begin() {
    this.conversations.push(new Conversation(`chat-${this.conversations.length + 1}`));
    this.choose(this.conversations.at(-1));
  }

  choose(conversation) {
    if (this.current) this.current.settings = this.settings.values;
    this.current = conversation;
    this.settings.values = conversation.settings;
    this.show();
    this.part("#question").focus();
  }

  // A question behind the last answer.
  say() {
    const question = this.part("#question");
    const text = question.value.trim();
    if (!text || this.current.isRunning) return;
    const last = this.current.last ?? null;
    // Nothing goes on from what has failed: it is asked instead.
    const parent = last?.answer.status === "failed" ? last.parent : last;
    if (this.ask(parent, text, text)) question.value = "";
  }

  // Ask behind a turn, or beside what was asked there before. Returns whether it was asked.
  ask(parent, input, text) {
    const { current } = this;
    const news = this.part(".composer .news");
    let body;
    try {
      body = this.settings.request(parent === null);
    } catch (error) {
      news.textContent = error.message;
      return false;
    }
    news.textContent = "";
    const previous = parent?.answer.id;
    if (previous) body.previous_response_id = previous;
    const compared = previous ?? this.newest;
    if (compared) body.prompt_cache_options = { comparison_response_id: compared };
    const turn = current.follow(parent, input, text, performance.now());
    turn.answer.changed = () => this.changed(turn);
    this.line.ask(current.lane, { input, ...body }, turn.answer);
    this.show();
    return true;
  }

  // Of many events between two pictures the last is drawn; what takes long to draw, less often.
  changed(turn) {
    if (turn.answer.status === "completed") this.newest = turn.answer.id;
    if (this.isDrawing) return;
    this.isDrawing = true;
    setTimeout(() => requestAnimationFrame(() => {
      this.isDrawing = false;
      const begun = performance.now();
      this.show();
      this.restMs = REST * (performance.now() - begun);
    }), this.restMs);
  }

  show() {
    const path = this.current.path();
    const list = this.part(".turns");
    const hands = {
      ask: (parent, input, text) => this.ask(parent, input, text),
      choose: (turn, index) => {
        this.current.siblings(turn).chosen = index;
        this.show();
      },
    };
    // An answer that has ended stays as it is: what is selected or typed in it does, too.
    path.forEach((turn, index) => {
      const isLast = index === path.length - 1;
      const state = `${turn.answer.status} ${isLast} ${this.current.isRunning}`;
      const known = list.children[index];
      const isSame = known?.turn === turn && known.state === state && !turn.answer.isRunning;
      if (isSame) return;
      const entry = turnOf(turn, this.current, { isLast, ...hands });
      Object.assign(entry, { turn, state });
      if (known) known.replaceWith(entry);
      else list.append(entry);
    });
    while (list.children.length > path.length) list.lastChild.remove();
    this.list();
    this.part("[name=stop]").hidden = !this.current.isRunning;
    this.part("[name=send]").disabled = this.current.isRunning;
  }

  list() {
    const entries = this.conversations.map((conversation) => {
      const name = conversation.name + (conversation.isRunning ? " …" : "");
      const chooser = button(name, () => this.choose(conversation));
      chooser.setAttribute("aria-current", conversation === this.current ? "true" : "false");
      const item = make("li");
      item.append(chooser);
      return item;
    });
    const list = this.part(".conversations ul");
    const isAsBefore = entries.length === list.children.length
      && entries.every((one, index) => one.isEqualNode(list.children[index]));
    if (!isAsBefore) list.replaceChildren(...entries);
  }
}
