// What went wrong, by the service's codes, as somebody who chats wants to read it: what happened, and what to do.

/** @typedef {{ code?: string | null, message?: string, param?: string | null }} Problem */

const AGAIN = "Answer again, or ask something else.";

/** @type {Record<string, string>} */
const WORDS = {
  engine_unavailable: "The engine is being started again. Try again in a few seconds.",
  store_unavailable: "The service cannot reach its store right now. Try again in a minute.",
  shutting_down: "This server is going down, and another one answers soon. Try again in a few seconds.",
  server_error: `The service had an error, and its log says more. ${AGAIN}`,
  insufficient_quota: "What is left of this month's budget is less than this may cost. Ask for fewer output tokens in the settings, or have an operator raise the budget.",
  rate_limit_exceeded: "Too many requests or tokens were asked for within a minute.",
  tokens_per_day_exceeded: "The tokens of this day are used up.",
  concurrent_streams_exceeded: "As many answers are being written as this tenant may have at once. Wait until one has ended, or stop one.",
  sockets_exceeded: "As many chats are open as this tenant may have at once. Close one in another tab.",
  queue_full: "Too many requests are waiting already. Try again in a few seconds.",
  inbox_full: "Too much was asked at once. Try again in a few seconds.",
  websocket_stream_limit_reached: "Too many conversations are being answered at once. Wait until one has ended.",
  context_length_exceeded: "The conversation has become longer than the model can read. Begin a new one, or ask for fewer output tokens in the settings.",
  model_not_found: "The model, or its adapter, is not there any more. Choose another one in the settings.",
  prompt_not_found: "The registered prompt is not there any more. Begin a conversation with another one.",
  too_many_images: "The conversation has as many pictures as it may have. Begin a new one.",
  body_too_large: "That is more than one message may hold. Send less, or a smaller picture.",
  message_too_large: "That is more than one message may hold. Send less, or a smaller picture.",
  response_lost: `The server that was writing this answer is gone. ${AGAIN}`,
  response_not_found: `The service has forgotten this answer. ${AGAIN}`,
  invalid_api_key: "This API key does not hold any more.",
  tenant_disabled: "An operator has disabled this tenant.",
};

/** @param {Problem} problem */
export function wordsFor({ code, message = "", param }) {
  if (code === "invalid_image") return `The picture${behind(param, message)} Choose another one, or a smaller one.`;
  if (message.includes("does not see pictures")) return "This model sees no pictures. Ask again without them.";
  const words = WORDS[code ?? ""] ?? message;
  const when = /try again in ([^.]+(?:\.\d+[^.]*)?)\./i.exec(message)?.[1];
  if (when === undefined || /try again/i.test(words)) return words;
  return `${words} Try again in ${waitOf(when)}.`;
}

// `1h2m3s`, `59.5s` or `20ms` as somebody would say it.
/** @param {string} duration */
function waitOf(duration) {
  const [, hours = 0, minutes = 0, seconds = 1] = (/^(?:(\d+)h)?(?:(\d+)m)?(?:([\d.]+)s)?$/.exec(duration) ?? []).map(Number);
  const most = [[hours / 24, "day"], [hours, "hour"], [minutes, "minute"]].find(([count]) => Number(count) >= 2);
  const [count, unit] = most ?? [hours * 3600 + minutes * 60 + seconds, "second"];
  return `${Math.ceil(Number(count))} ${unit}s`;
}

// What a message says of a field, without its name.
/** @param {string | null | undefined} param @param {string} message */
function behind(param, message) {
  const rest = message.slice(param ? message.indexOf(param) + param.length : 0).replace(/^['"]?:?\s*/, " ");
  return /[.!?]$/.test(rest) ? rest : `${rest}.`;
}

// What is to be said of an answer that has ended at a limit, if one has, and whether it can be gone on from.
/** @param {import("./answer.js").Answer | undefined} answer @param {number} mostTokens that the model reads */
export function noticeOf(answer, mostTokens) {
  const limit = answer?.limit ?? null;
  if (limit === null) return null;
  if (answer?.response?.usage.total_tokens >= mostTokens) {
    return { words: "The conversation is as long as the model can read. Begin a new one.", canGoOn: false };
  }
  return { words: `It ended at the limit of ${limit} tokens: raise it in the settings, or ask it to go on.`, canGoOn: true };
}
