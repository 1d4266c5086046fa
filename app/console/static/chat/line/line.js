// One socket for all conversations, each answer in a lane of its own. A broken one is opened again, and
// the answers that it carried go on behind the last event that has come.

import { now } from "../said/answer.js";
import { Tape } from "./tape.js";

/**
 * @typedef {import("../said/answer.js").Answer} Answer
 * @typedef {Record<string, any>} Body of a request, or a response
 * @typedef {{ find(id: string): Promise<Body>, told(isOpen: boolean, why: Body | null): void }} Ear
 * @typedef {{ answer: Answer, request: Body, whole: () => Body, isWhole: boolean, isStopped: boolean }} Running
 */

const TERMINAL = new Set(["response.completed", "response.incomplete", "response.failed"]);
const RUNNING = new Set(["in_progress", "queued"]);
const FORGOTTEN = "previous_response_not_found";
const UNREADABLE = new Set(["response_not_found", "response_lost", "response_runs_elsewhere"]); // a stream
const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 8000;
const LOOK_MS = 2000;

export class Line {
  // `place` has an address and protocols. Of `ear`, `told` hears when it opens or breaks, or that something
  // was refused, and `find` gets a response that cannot be streamed any more.
  /** @param {{ address: URL, protocols: string[] }} place @param {Ear} ear */
  constructor(place, ear) {
    this.place = place;
    this.ear = ear;
    /** @type {Map<string, Running>} */
    this.running = new Map(); // by lane
    this.record = new Tape();
    this.retry = FIRST_RETRY_MS;
    /** @type {WebSocket | null} */
    this.socket = null;
    this.open();
  }

  open() {
    const socket = new WebSocket(this.place.address, this.place.protocols);
    socket.addEventListener("open", () => this.begin());
    socket.addEventListener("message", ({ data }) => this.hear(JSON.parse(data)));
    socket.addEventListener("close", () => this.lose(socket));
    this.socket = socket;
  }

  get isOpen() { return this.socket?.readyState === WebSocket.OPEN; }

  get tape() { return this.record.said; }

  begin() {
    this.retry = FIRST_RETRY_MS;
    this.ear.told(true, null);
    for (const [lane, running] of this.running) {
      this.send(lane, running);
      if (running.isStopped) this.stop(running.answer);
    }
  }

  /** @param {WebSocket} socket */
  lose(socket) {
    if (socket !== this.socket) return;
    this.ear.told(false, null);
    this.retry = Math.min(LAST_RETRY_MS, 2 * this.retry);
    this.opening = setTimeout(() => this.open(), this.retry / 2);
  }

  // Have an answer carried, from where it is: it hears events up to a terminal one. `whole()` is the request with
  // all that was said before, for a service that has forgotten it.
  /** @param {Body} body @param {Answer} answer @param {() => Body} whole */
  carry(body, answer, whole) {
    let number = 1;
    while (this.running.has(`chat-${number}`)) number++;
    const running = { answer, request: body, whole, isWhole: false, isStopped: false };
    this.running.set(`chat-${number}`, running);
    if (this.isOpen) this.send(`chat-${number}`, running);
  }

  // What had not begun is asked again: nobody else can know of it.
  /** @param {string} lane @param {Running} running */
  send(lane, { answer, request }) {
    this.say(answer.id === null ? { type: "response.create", ...request, stream_id: lane }
      : { type: "response.resume", response_id: answer.id, starting_after: Math.max(answer.last, 0), stream_id: lane });
  }

  /** @param {Answer} answer */
  carries(answer) { return this.laneOf(answer) !== undefined; }

  /** @param {Answer} answer */
  laneOf(answer) { return [...this.running.keys()].find((lane) => this.running.get(lane)?.answer === answer); }

  // While the line is broken, as soon as it is mended.
  /** @param {Answer} answer */
  stop(answer) {
    const lane = this.laneOf(answer);
    if (lane === undefined) return;
    if (this.isOpen) this.say({ type: "response.cancel", stream_id: lane });
    else /** @type {Running} */ (this.running.get(lane)).isStopped = true;
  }

  // Break the socket as a bad network would: what it carried is resumed on the next one.
  cut() { this.socket?.close(); }

  close() {
    const { socket } = this;
    this.socket = null;
    clearTimeout(this.opening);
    socket?.close();
  }

  /** @param {Body} message */
  say(message) {
    this.record.add("client", message);
    this.socket?.send(JSON.stringify(message));
  }

  /** @param {import("../said/answer.js").Event} event */
  hear(event) {
    this.record.add("server", event);
    const lane = event.stream_id;
    const running = this.running.get(lane);
    if (running === undefined) {
      if (event.type === "error") this.ear.told(this.isOpen, event.error);
      return;
    }
    const code = event.type === "error" ? event.error.code : null;
    if (code === FORGOTTEN && !running.isWhole) this.again(lane, running);
    else if (UNREADABLE.has(code) && running.answer.id !== null) this.recover(lane, running, event);
    else {
      if (event.type === "error" || TERMINAL.has(event.type)) this.running.delete(lane);
      running.answer.take(event, now());
    }
  }

  /** @param {string} lane @param {Running} running */
  again(lane, running) {
    Object.assign(running, { request: running.whole(), isWhole: true });
    running.answer.restart();
    this.send(lane, running);
  }

  // An answer whose stream cannot be read may have ended and be kept, or run elsewhere, or be gone: then it is
  // asked for again.
  /** @param {string} lane @param {Running} running @param {import("../said/answer.js").Event} refusal */
  async recover(lane, running, refusal) {
    const { answer } = running;
    let response;
    try {
      response = await this.ear.find(answer.id ?? "");
    } catch (error) {
      response = error.status === 404 ? null : { status: "unknown" };
    }
    if (this.running.get(lane) !== running || this.socket === null) return;
    if (response === null && !running.isWhole) this.again(lane, running);
    else if (RUNNING.has(response?.status)) setTimeout(() => this.recover(lane, running, refusal), LOOK_MS);
    else {
      this.running.delete(lane);
      if (response?.output) answer.settle(response, now());
      else answer.take(refusal, now());
    }
  }
}
