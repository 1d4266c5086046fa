// What is asked of the service for a turn.

/**
 * @typedef {import("../said/tree.js").Turn} Turn
 * @typedef {import("../said/tree.js").Input} Input
 * @typedef {Record<string, any>} Body
 */

// Behind the response before, compared with it or, at a conversation's beginning, with `newest`.
/** @param {Turn} turn @param {string | null} newest a response's id @returns {Body} */
export function requestOf({ parent, input, asked }, newest) {
  const previous = parent?.answer.id;
  const compared = previous ?? newest;
  return {
    input,
    ...asked,
    ...(previous ? { previous_response_id: previous } : {}),
    ...(compared ? { prompt_cache_options: { comparison_response_id: compared } } : {}),
  };
}

// With all that was said before, so that it builds on nothing that the service would have to know.
/** @param {Turn} turn @returns {Body} */
export function wholeRequestOf({ first, parent, input, asked }) {
  const { instructions, prompt } = first.asked;
  const begun = { ...(instructions ? { instructions } : {}), ...(prompt ? { prompt } : {}) };
  return { ...asked, ...begun, input: [...said(parent), ...itemsOf(input)] };
}

// All that was said up to a turn and with it, as items.
/** @param {Turn | null} turn @returns {Body[]} */
function said(turn) {
  return turn === null ? [] : [...said(turn.parent), ...itemsOf(turn.input), ...answered(turn.answer)];
}

/** @param {Input} input */
const itemsOf = (input) => (typeof input === "string" ? [{ role: "user", content: input }] : input);

/** @param {Turn["answer"]} answer @returns {Body[]} */
function answered({ items }) {
  const given = [];
  for (const item of items) {
    const { type, status, text, call_id, name } = item ?? {};
    if (type === "message") given.push({ role: "assistant", content: text });
    else if (status !== "completed") continue; // a call that was cut
    else if (type === "function_call") given.push({ type, call_id, name, arguments: item.arguments });
    else if (type === "custom_tool_call") given.push({ type, call_id, name, input: item.input });
  }
  return given;
}
