// Conversations as trees: a question that was edited, and one that is answered again, are siblings.

export const isCall = (item) => ["function_call", "custom_tool_call"].includes(item?.type);

export class Answer {
  constructor(now) {
    this.id = null; // the response's
    this.last = -1; // the number of the last event that has come
    this.items = []; // as in the response, growing
    this.status = "waiting";
    this.begunAt = now;
    this.firstAt = null;
    this.endedAt = null;
    this.response = null; // what the terminal event says
    this.problem = "";
    this.changed = () => {};
  }

  get isRunning() { return this.endedAt === null; }

  take(event, now) {
    if (event.sequence_number !== undefined) this.last = event.sequence_number;
    const item = this.items[event.output_index];
    switch (event.type) {
      case "response.created":
        this.id = event.response.id;
        break;
      case "response.output_item.added":
        this.items[event.output_index] = { text: "", begunAt: now, ...event.item };
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
        Object.assign(item, { status: event.item.status, endedAt: now });
        break;
      case "error":
        this.end("failed", event.error.message, now);
        break;
      case "response.completed":
      case "response.incomplete":
      case "response.failed":
        this.response = event.response;
        this.end(event.response.status, event.response.error?.message ?? "", now);
        break;
    }
    if (event.delta !== undefined) {
      this.status = "streaming";
      this.firstAt ??= now;
    }
    this.changed();
  }

  end(status, problem, now) {
    this.status = status;
    this.problem = problem;
    this.endedAt = now;
  }

  get calls() { return this.items.filter(isCall); }

  // What was measured and counted, and why the cache had no more, in words.
  get figures() {
    const facts = [];
    if (this.firstAt !== null) facts.push(`first token after ${Math.round(this.firstAt - this.begunAt)} ms`);
    const usage = this.response?.usage;
    if (usage) {
      const seconds = (this.endedAt - this.firstAt) / 1000;
      const rate = usage.output_tokens > 1 && seconds > 0 ? `, ${((usage.output_tokens - 1) / seconds).toFixed(1)}/s` : "";
      facts.push(`${usage.output_tokens} tokens${rate}`);
      facts.push(`${usage.input_tokens_details.cached_tokens} of ${usage.input_tokens} prompt tokens cached`);
    }
    const why = because(this.response?.prompt_cache_diagnostics);
    if (why) facts.push(why);
    if (this.status === "incomplete") facts.push(`cut: ${this.response.incomplete_details?.reason ?? "incomplete"}`);
    if (this.status === "cancelled") facts.push("stopped");
    return facts.join(" · ");
  }
}

const CAUSES = {
  model_changed: "the model differs",
  prompt_cache_key_changed: "the cache key differs",
  tools_changed: "the functions differ",
  reasoning_effort_changed: "the reasoning effort differs",
  context_compacted: "the context was compacted",
  input_changed: "what is said differs",
  evicted: "blocks were evicted",
  no_state: "keys were there, but no state to go on from",
  end_user_changed: "it is another end user's",
  namespace_changed: "the blocks have other keys",
  prefix_shorter_than_block: "less than a block is alike",
  not_kept: "the other one had no more kept",
  unknown: "the pool does not remember why",
};
const EVICTORS = {
  pressure: "for want of memory",
  expired: "behind the end of a lease",
  own_quota: "beyond the tenant's limit of leases",
  deleted: "as they were deleted",
};

// Why the cache held no more than it did, beside the response that was compared with.
export function because(diagnostics) {
  if (!diagnostics) return "";
  if (diagnostics.type === "comparison_response_not_found") return "the response to compare with is gone";
  const parts = [];
  const own = diagnostics.details?.reason;
  if (diagnostics.type === "cache_miss") {
    const behind = diagnostics.comparison_reusable_tokens;
    const where = behind === undefined ? "" : ` behind token ${behind}`;
    parts.push(`${CAUSES[diagnostics.reason] ?? diagnostics.reason}${where}`);
  }
  if (own && own !== "not_asked") {
    const evictor = EVICTORS[diagnostics.details.evicted_by];
    parts.push(`${CAUSES[own] ?? own}${evictor ? ` ${evictor}` : ""}`);
  }
  return parts.length ? `no more, as ${parts.join(", and ")}` : "";
}

// A question, or results of calls, and the answer to it.
class Turn {
  constructor(parent, input, text, answer) {
    this.parent = parent;
    this.input = input;
    this.text = text;
    this.answer = answer;
    this.followers = [];
    this.chosen = 0;
  }
}

export class Conversation {
  // `beside` is what answers the same questions in a comparison, if it is one.
  constructor(lane, beside = null) {
    this.lane = lane;
    this.beside = beside;
    this.followers = []; // turns that it may begin with
    this.chosen = 0;
    this.settings = {};
    this.newest = null; // the turn that was asked last, shown or not
  }

  get sides() { return this.beside === null ? [this] : [this, this.beside]; }

  get name() {
    const [first] = this.path();
    return first?.text.slice(0, 40) || (this.beside ? "New comparison" : "New conversation");
  }

  // The turns that are shown: at each fork the chosen one.
  path() {
    const turns = [];
    for (let at = this; at.followers.length > 0;) {
      at = at.followers[at.chosen];
      turns.push(at);
    }
    return turns;
  }

  // What a new question goes on behind: nothing goes on from what has failed, it is asked instead.
  get end() {
    const last = this.path().at(-1) ?? null;
    return last?.answer.status === "failed" ? last.parent : last;
  }

  // Whether its lane is taken, be it by a version that is not shown.
  get isRunning() { return this.newest?.answer.isRunning ?? false; }

  // Go on behind `parent` (null: from the beginning), beside what may have followed it already.
  follow(parent, input, text, now) {
    const turn = (this.newest = new Turn(parent, input, text, new Answer(now)));
    const at = parent ?? this;
    at.chosen = at.followers.push(turn) - 1;
    return turn;
  }

  siblings(turn) { return turn.parent ?? this; }
}
