// Chats over one socket.

import { Column } from "./column.js";
import { Conversation } from "./conversation.js";
import { askForKey } from "./key.js";
import { button, fill, make } from "../dom.js";
import { Line } from "./line.js";
import { asked, Pictures } from "./pictures.js";
import { Settings } from "./settings.js";

const REST = 4; // times as long as the drawing took
const NEAR = 60; // pixels from the page's end: who is there follows what is written
const NAMED = ["model", "beside"]; // fields of the settings: what a conversation's sides ask
const BASE = ":"; // the served model with no adapter, not even the tenant's own
const MARKUP = `
<div class="line">
  <p class="state" role="status"></p>
  <button type="button" name="key" hidden>Another key</button>
  <button type="button" name="cut" title="Break the socket, as a bad network would">Cut the line</button>
</div>
<div class="chat">
  <nav class="conversations" aria-label="Conversations">
    <button type="button" name="new">New conversation</button>
    <button type="button" name="compare">New comparison</button><ul></ul>
  </nav>
  <div class="conversation">
    <details class="settings"></details>
    <div class="columns"></div>
    <form class="composer">
      <label for="question">Message</label>
      <textarea id="question" rows="2"></textarea>
      <div class="tools"><button class="primary" name="send">Send</button>
        <button type="button" name="stop" hidden>Stop</button>
        <button type="button" name="newest" hidden>Newest</button>
        <p class="news" role="alert"></p></div>
    </form>
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
  const look = () => chats?.look();
  window.addEventListener("scroll", look, { passive: true });
  const close = () => {
    window.removeEventListener("scroll", look);
    chats?.close();
    element.replaceChildren();
  };
  return { close };
}

class Chats {
  // `changeKey` asks an operator for another key.
  constructor(element, api, changeKey) {
    this.api = api;
    fill(element, MARKUP);
    this.part = (name) => element.querySelector(name);
    this.part("[name=key]").hidden = !api.isOperator;
    this.part("[name=key]").addEventListener("click", changeKey);
    this.settings = new Settings(this.part(".settings"));
    this.pictures = new Pictures(this.part(".composer"), (why) => {
      this.part(".composer .news").textContent = why;
    });
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
    on("[name=compare]", "click", () => this.compare());
    on(".settings", "input", () => this.show());
    on("[name=cut]", "click", () => this.line.cut());
    on("[name=stop]", "click", () => this.stop());
    on("[name=newest]", "click", () => this.follow());
    on(".conversation", "keydown", ({ key }) => { if (key === "Escape") this.stop(); });
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

  stop() {
    for (const { lane, isRunning } of this.current.sides) {
      if (isRunning) this.line.stop(lane);
    }
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

  begin(beside = null) {
    this.conversations.push(new Conversation(this.lane, beside));
    this.choose(this.conversations.at(-1));
  }

  // Two models answer each question, the base and another one if nothing else is chosen.
  compare() {
    this.begin(new Conversation(`${this.lane}-beside`));
    this.settings.field("model").value = BASE;
    this.settings.element.open = true;
    this.show();
    this.settings.field("beside").focus();
  }

  // The next conversation's.
  get lane() { return `chat-${this.conversations.length + 1}`; }

  choose(conversation) {
    if (this.current) this.current.settings = this.settings.values;
    this.current = conversation;
    this.settings.values = conversation.settings;
    this.settings.isComparison = conversation.beside !== null;
    this.columns = conversation.sides.map((side) => new Column(side, {
      ask: (parent, input, text) => this.ask([{ side, parent }], input, text),
      shown: () => this.show(),
    }));
    this.part(".columns").replaceChildren(...this.columns.map((column) => column.element));
    this.show();
    this.part("#question").focus();
  }

  // A question behind the last answers.
  say() {
    const question = this.part("#question");
    const text = question.value.trim();
    const { urls } = this.pictures;
    if (!(text || urls.length) || isBusy(this.current)) return;
    const places = this.current.sides.map((side) => ({ side, parent: side.end }));
    if (!this.ask(places, asked(text, urls), text)) return;
    question.value = "";
    this.pictures.clear();
  }

  // Ask in conversations, each behind a turn, or beside what was asked there before. Returns whether
  // it was asked.
  ask(places, input, text) {
    const news = this.part(".composer .news");
    let requests;
    try {
      requests = places.map(({ side, parent }) => ({ side, parent, body: this.request(side, parent) }));
    } catch (error) {
      news.textContent = error.message;
      return false;
    }
    news.textContent = "";
    this.isFollowing = true;
    for (const { side, parent, body } of requests) {
      const turn = side.follow(parent, input, text, performance.now());
      turn.answer.changed = () => this.changed(turn);
      this.line.ask(side.lane, { input, ...body }, turn.answer);
    }
    this.show();
    return true;
  }

  // What is asked behind a turn, but for the input. Throws for settings that are wrong.
  request(side, parent) {
    const body = this.settings.request(parent === null, NAMED[this.current.sides.indexOf(side)]);
    const previous = parent?.answer.id;
    if (previous) body.previous_response_id = previous;
    const compared = previous ?? this.newest;
    if (compared) body.prompt_cache_options = { comparison_response_id: compared };
    return body;
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
    const isComparison = this.columns.length > 1;
    this.columns.forEach((column, index) => {
      column.show(isComparison ? titled(this.settings.field(NAMED[index]).value) : "");
    });
    this.list();
    this.part("[name=stop]").hidden = !isBusy(this.current);
    this.part("[name=send]").disabled = isBusy(this.current);
    if (this.isFollowing) this.follow();
    else this.look();
  }

  // Go to what is written, and stay there.
  follow() {
    this.isFollowing = true;
    if (!this.part(".conversation").closest("[hidden]")) window.scrollTo(0, document.body.scrollHeight);
    this.look();
  }

  // Who has scrolled away is left there, and told of the way back.
  look() {
    const { scrollHeight, scrollTop, clientHeight } = document.scrollingElement;
    this.isFollowing = scrollHeight - scrollTop - clientHeight < NEAR;
    this.part("[name=newest]").hidden = this.isFollowing || !isBusy(this.current);
  }

  list() {
    const entries = this.conversations.map((conversation) => {
      const name = conversation.name + (isBusy(conversation) ? " …" : "");
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

const isBusy = (conversation) => conversation.sides.some((side) => side.isRunning);

// What stands over the answers of a model that is named so.
function titled(model) {
  if (model === "") return "Not chosen yet";
  return model.endsWith(BASE) ? "The base" : model;
}
