// The chats of a tenant: which conversation is shown, what is asked in it, and what comes back.

import { now } from "./said/answer.js";
import { Column } from "./turns/column.js";
import { Composer } from "./composer.js";
import { Drawer } from "./line/drawer.js";
import { fill, part, put } from "../dom.js";
import { Exchange } from "./line/exchange.js";
import { Following } from "./following.js";
import { ConversationHeading, metaOf } from "./heading.js";
import { Kept } from "./keeping/kept.js";
import { linkOf, List } from "./list.js";
import { saveAs } from "./keeping/saving.js";
import { BASE, Settings, titleOf } from "./settings.js";
import { firstWords } from "./said/conversation.js";
import { Welcome } from "./welcome.js";
import { noticeOf } from "./said/words.js";

/**
 * @typedef {import("./said/conversation.js").Conversation} Conversation
 * @typedef {import("./said/tree.js").Tree} Tree
 * @typedef {import("./said/tree.js").Turn} Turn
 * @typedef {import("./said/tree.js").Input} Input
 * @typedef {{ side: Tree, parent: Turn | null }} Place
 * @typedef {{ changeKey(): void, refused(why: string): void }} Hands
 */

const REST = 4; // times as long as the drawing took
const NAMED = ["model", "beside"]; // fields of the settings: what a conversation's sides ask
const GO_ON = "Go on.";
const HEARD = 2000; // characters of an answer: some minutes of speech, in one go
const MARKUP = `
<div class="chat">
  <nav class="conversations" aria-label="Conversations"></nav>
  <div class="conversation">
    <div class="over"></div>
    <div class="line"><p class="meta"></p><p class="state" role="status"></p>
      <button type="button" name="key" class="quiet" hidden>Another key</button></div>
    <details class="settings"></details>
    <details class="drawer"></details>
    <section class="welcome" aria-label="Welcome" hidden></section>
    <div class="columns"></div>
    <p class="unseen heard" role="status"></p>
    <form class="composer"></form>
  </div>
</div>`;

export class Chats {
  /** @param {HTMLElement} element @param {import("../api.js").Api} api @param {Hands} hands @param {string} [id] */
  constructor(element, api, hands, id) {
    this.element = element;
    this.api = api;
    this.hands = hands;
    fill(element, MARKUP);
    this.part = (/** @type {string} */ name) => part(element, name);
    this.part("[name=key]").hidden = !api.isOperator;
    this.part("[name=key]").addEventListener("click", () => hands.changeKey());
    this.settings = new Settings(this.part(".settings"));
    this.composer = new Composer(this.part(".composer"), {
      say: (input, text) => this.say(input, text),
      draft: (text) => this.keep({ draft: text }),
      stop: () => this.exchange?.stop(this.current),
      goOn: () => this.say(GO_ON, GO_ON),
    });
    this.over = new ConversationHeading(this.part(".over"), {
      rename: (title) => this.keep({ title }),
      save: (kind) => saveAs(this.current, kind),
      remove: () => this.remove(),
    });
    this.welcome = new Welcome(this.part(".welcome"), (question) => {
      this.composer.write(question);
      this.composer.question.focus();
    });
    this.kept = new Kept({
      found: (conversation, turn, isFirst) => this.exchange?.found(conversation, turn, isFirst),
      changed: () => this.show(),
      gone: (conversation) => this.gone(conversation),
      carries: ({ answer }) => this.exchange?.line.carries(answer) ?? false,
      told: (why) => this.composer.tell(why),
    });
    this.list = new List(this.part(".conversations"), {
      begin: () => this.enter(this.kept.begin(false)),
      compare: () => this.compare(),
      search: (text) => this.kept.search(text),
    });
    this.part(".settings").addEventListener("input", () => this.keep({ settings: this.settings.values }));
    this.part(".conversation").addEventListener("keydown", (/** @type {KeyboardEvent} */ { key }) => {
      if (key === "Escape") this.exchange?.stop(this.current);
    });
    this.following = new Following(element, this.part("[name=newest]"), () => this.current.isRunning);
    /** @type {Exchange | undefined} */
    this.exchange = undefined;
    /** @type {Column[]} */
    this.columns = [];
    this.restMs = 0;
    this.isClosed = false;
    this.tenant = "";
    /** @type {import("./welcome.js").Model | undefined} */
    this.model = undefined; // what is served
    this.current = this.kept.begin(false);
    this.choose(this.current);
    this.begin(id);
  }

  // Read what is kept, and only then go on with it.
  /** @param {string} [id] */
  async begin(id) {
    try {
      this.tenant = await this.api.whose();
      await this.kept.open(this.tenant);
    } catch (error) {
      this.composer.tell(`Conversations last until the page is left: ${error.message}`);
    }
    if (this.isClosed) return;
    this.exchange = new Exchange(this.api, this.kept, {
      grown: () => this.grown(),
      ended: (conversation, turn) => this.announce(conversation, turn),
      told: (isOpen, words) => this.tell(isOpen, words),
      refused: (why) => this.hands.refused(why),
    });
    const { line } = this.exchange;
    Object.assign(this.element, { line }); // to be read by who wants to know what was said
    this.drawer = new Drawer(this.part(".drawer"), line);
    this.offer();
    await this.kept.resume();
    await this.visit(id);
    this.show();
  }

  close() {
    this.isClosed = true;
    this.exchange?.close();
    this.kept.close();
  }

  async offer() {
    try {
      const [models, prompts] = await Promise.all([this.api.models(), this.api.prompts()]);
      this.model = models[0];
      this.composer.sees = models.some(({ input_modalities: kinds }) => kinds.includes("image"));
      this.settings.offerModels(models.map(({ id }) => id));
      this.settings.offerPrompts(prompts);
      this.show();
    } catch ({ message }) {
      this.composer.tell(`The models and prompts are not listed: ${message}`);
    }
  }

  /** @param {boolean} isOpen @param {string} words */
  tell(isOpen, words) {
    put(this.part(".state"), `${isOpen ? "Connected." : "Reconnecting…"} ${words}`.trim());
    this.part(".line").classList.toggle("broken", !isOpen);
  }

  // Go to a conversation by its address; without one, the current has it.
  /** @param {string} [id] */
  async visit(id = this.current.id) {
    const conversation = this.kept.conversations.get(id);
    if (conversation === undefined) this.composer.tell("That conversation is not in this browser, or was deleted.");
    else if (conversation !== this.current) await this.choose(conversation);
    this.point();
  }

  // Have the address name what is shown, if this view is.
  point() {
    const link = linkOf(this.current);
    if (!this.element.hidden && location.hash !== link) history.replaceState(null, "", link);
  }

  // Show a conversation that one can come back from.
  /** @param {Conversation} conversation */
  enter(conversation) {
    history.pushState(null, "", linkOf(conversation));
    return this.choose(conversation);
  }

  // Two models answer each question, the base and another one if nothing else is chosen.
  async compare() {
    const conversation = this.kept.begin(true);
    conversation.settings = { ...this.settings.values, model: BASE };
    await this.enter(conversation);
    this.settings.element.open = true;
    this.settings.field("beside").focus();
  }

  /** @param {Conversation} conversation */
  async choose(conversation) {
    const before = this.current;
    this.current = conversation;
    await this.kept.load(conversation);
    if (this.current !== conversation) return; // another one was chosen meanwhile
    if (before !== conversation && !before.isKept) this.kept.conversations.delete(before.id);
    this.settings.values = conversation.settings;
    this.settings.isComparison = conversation.isComparison;
    this.part(".conversation").classList.toggle("compares", conversation.isComparison);
    this.composer.write(conversation.draft);
    this.columns = conversation.sides.map((side) => new Column(side, {
      ask: (/** @type {Turn | null} */ parent, /** @type {Input} */ input, /** @type {string} */ text) =>
        this.ask([{ side, parent }], input, text),
      shown: () => this.keep({ choices: conversation.heading.choices }),
      grown: () => this.following.grown(),
    }));
    this.part(".columns").replaceChildren(...this.columns.map((column) => column.element));
    this.list.open(false);
    this.show();
    this.composer.question.focus();
  }

  /** @param {Partial<import("./said/conversation.js").Heading>} changes */
  keep(changes) {
    this.kept.put(this.current, changes);
    this.show();
  }

  // A question behind the last answers. Returns whether it was asked.
  /** @param {Input} input @param {string} text */
  say(input, text) {
    return this.ask(this.current.sides.map((side) => ({ side, parent: side.end })), input, text);
  }

  // Ask in conversations, each behind a turn, or beside what was asked there before. Returns whether
  // it was asked.
  /** @param {Place[]} places @param {Input} input @param {string} text */
  ask(places, input, text) {
    const { current: conversation, exchange } = this;
    if (exchange === undefined) return false; // what is kept is being read
    const index = (/** @type {Tree} */ side) => conversation.sides.indexOf(side);
    let bodies;
    try {
      bodies = places.map(({ side, parent }) => this.settings.request(parent === null, NAMED[index(side)]));
    } catch (error) {
      this.composer.tell(error.message);
      return false;
    }
    this.composer.tell("");
    this.following.isFollowing = true;
    places.forEach(({ side, parent }, place) => {
      const turn = side.follow(parent, input, text, bodies[place]);
      this.kept.asked(conversation, turn, index(side));
      exchange.carry(conversation, turn);
    });
    this.keep({
      title: conversation.title || firstWords(text || "Pictures"), changedAt: now(), draft: "", isRunning: true,
      settings: this.settings.values, choices: conversation.heading.choices,
    });
    return true;
  }

  // Of many events between two pictures the last is drawn; what takes long to draw, less often.
  grown() {
    if (this.isDrawing) return;
    this.isDrawing = true;
    setTimeout(() => requestAnimationFrame(() => {
      this.isDrawing = false;
      const begun = performance.now();
      this.show();
      this.restMs = REST * (performance.now() - begun);
    }), this.restMs);
  }

  // Tell who hears the page of an answer once, when it has ended: of a long one how it begins.
  /** @param {Conversation} conversation @param {Turn} turn */
  announce(conversation, { answer }) {
    const begin = answer.text.length > HEARD ? `${answer.text.slice(0, HEARD)}… The rest is in the page.` : answer.text;
    const text = conversation === this.current ? begin : `An answer in ${conversation.name} has ended.`;
    put(this.part(".heard"), [text, answer.problem].filter(Boolean).join(" "));
  }

  remove() {
    this.exchange?.forget(this.current);
    this.gone(this.current);
  }

  /** @param {Conversation} conversation */
  async gone(conversation) {
    if (conversation === this.current) await this.choose(this.kept.begin(false));
    this.point();
    this.show();
  }

  show() {
    const { current } = this;
    this.columns.forEach((column, index) => {
      column.show(current.isComparison ? titleOf(this.settings.field(NAMED[index]).value) : "");
    });
    this.list.show([...this.kept.conversations.values()].filter((one) => one.isKept || one === current), current);
    this.welcome.show(current.sides.every(({ followers }) => followers.length === 0), this.model);
    const served = this.model?.id ?? "";
    const model = current.sides[0].end?.answer.response?.model ?? (this.settings.values.model || served);
    put(this.part(".meta"), metaOf(model, served, this.tenant));
    this.over.show(current.name, !current.isKept);
    const notices = current.sides.map((side) => noticeOf(side.end?.answer, this.model?.context_window ?? Infinity));
    this.composer.show(current.isRunning, notices.find((one) => one !== null) ?? null);
    this.following.grown();
  }
}
