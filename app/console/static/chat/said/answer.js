// An answer as it grows by a response's events, and what it took, in words.

import { because } from "./because.js";
import { wordsFor } from "./words.js";

/**
 * @typedef {Record<string, any>} Item of a response; texts of messages and of reasoning are its `text`
 * @typedef {Record<string, any> & { type: string }} Event
 */

const KEPT = [
  "model", "usage", "text", "incomplete_details", "max_output_tokens", "prompt_cache_diagnostics",
]; // of a response that has ended, beside its items

// A moment that still means something after a reload, in milliseconds.
export const now = () => performance.timeOrigin + performance.now();

/** @param {Item | undefined} item */
export const isCall = (item) => ["function_call", "custom_tool_call"].includes(item?.type);

export class Answer {
  constructor(at = now()) {
    /** @type {string | null} */
    this.id = null; // the response's
    this.last = -1; // the number of the last event that has come
    /** @type {Item[]} */
    this.items = []; // as in the response, growing
    this.status = "waiting";
    this.begunAt = at;
    /** @type {number | null} */
    this.firstAt = null;
    /** @type {number | null} */
    this.endedAt = null;
    /** @type {Record<string, any> | null} */
    this.response = null; // what the terminal event says
    this.problem = "";
    this.changed = () => {};
  }

  get isRunning() { return this.endedAt === null; }

  /** @param {Event} event @param {number} at */
  take(event, at) {
    if (event.sequence_number !== undefined) this.last = event.sequence_number;
    const item = this.items[event.output_index];
    switch (event.type) {
      case "response.created":
        this.id = event.response.id;
        break;
      case "response.output_item.added":
        this.items[event.output_index] = { text: "", begunAt: at, ...event.item };
        break;
      case "response.output_text.delta":
      case "response.reasoning_text.delta":
        item.text += event.delta;
        break;
      case "response.function_call_arguments.delta":
        item.arguments += event.delta;
        break;
      case "response.custom_tool_call_input.delta":
        item.input += event.delta;
        break;
      case "response.output_item.done":
        Object.assign(item, { status: event.item.status, endedAt: at });
        break;
      case "error":
        this.end("failed", wordsFor(event.error), at);
        break;
      case "response.completed":
      case "response.incomplete":
      case "response.failed":
        this.close(event.response, at);
        break;
    }
    if (event.delta !== undefined) {
      this.status = "streaming";
      this.firstAt ??= at;
    }
    this.changed();
  }

  // A whole response that was asked for, as its events do not come any more.
  /** @param {Record<string, any>} response @param {number} at */
  settle(response, at) {
    this.items = response.output.map((/** @type {Item} */ item) => (
      { ...item, text: (item.content ?? []).map((/** @type {Item} */ part) => part.text ?? "").join("") }));
    this.close(response, at);
    this.changed();
  }

  /** @param {Record<string, any>} response @param {number} at */
  close(response, at) {
    this.response = Object.fromEntries(KEPT.map((name) => [name, response[name]]));
    this.end(response.status, response.error ? wordsFor(response.error) : "", at);
  }

  // It is asked for anew.
  restart() { Object.assign(this, new Answer(), { changed: this.changed }); }

  /** @param {string} status @param {string} problem @param {number} at */
  end(status, problem, at) {
    this.status = status;
    this.problem = problem;
    this.endedAt = at;
  }

  get calls() { return this.items.filter(isCall); }

  get text() { return this.items.map((item) => (item?.type === "message" ? item.text : "")).join(""); }

  // The tokens that it ended at, if there was a limit of them that did.
  get limit() {
    if (this.status !== "incomplete") return null;
    if (this.response?.incomplete_details?.reason !== "max_output_tokens") return null;
    return this.response.usage?.output_tokens ?? this.response.max_output_tokens ?? null;
  }

  // All that is kept of it.
  get record() {
    const { id, last, items, status, begunAt, firstAt, endedAt, response, problem } = this;
    return { id, last, items, status, begunAt, firstAt, endedAt, response, problem };
  }

  /** @param {Answer["record"]} record */
  restore(record) { Object.assign(this, record); }

  // What was measured and counted, and why the cache had no more, in words.
  get figures() {
    const facts = [];
    if (this.firstAt !== null) facts.push(`first token after ${Math.round(this.firstAt - this.begunAt)} ms`);
    const usage = this.response?.usage;
    if (usage) {
      const seconds = (Number(this.endedAt) - Number(this.firstAt ?? this.endedAt)) / 1000;
      const rate = usage.output_tokens > 1 && seconds > 0 ? `, ${((usage.output_tokens - 1) / seconds).toFixed(1)}/s` : "";
      facts.push(`${usage.output_tokens} tokens${rate}`);
      facts.push(`${usage.input_tokens_details.cached_tokens} of ${usage.input_tokens} prompt tokens cached`);
    }
    const why = because(this.response?.prompt_cache_diagnostics);
    if (why) facts.push(why);
    if (this.limit !== null) facts.push(`ended at the limit of ${this.limit} tokens`);
    if (this.status === "cancelled") facts.push("stopped");
    return facts.join(" · ");
  }
}
