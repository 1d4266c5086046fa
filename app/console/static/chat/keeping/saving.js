// A conversation as a file: what was shown as Markdown, or all of it as JSON.

import { make } from "../../dom.js";
import { Conversation } from "../said/conversation.js";

/** @param {Conversation} conversation */
function asMarkdown(conversation) {
  const parts = [`# ${conversation.name}`];
  conversation.sides.forEach((side, index) => {
    if (conversation.isComparison) parts.push(`## Side ${index + 1}`);
    for (const { text, answer } of side.path()) {
      const calls = answer.calls.map((call) => `Calls \`${call.name}\`:\n\n\`\`\`\n${call.input ?? call.arguments}\n\`\`\``);
      parts.push(quoted(text), ...[answer.text, ...calls, answer.problem].filter(Boolean));
    }
  });
  return `${parts.join("\n\n")}\n`;
}

/** @param {string} text */
const quoted = (text) => text.split("\n").map((line) => `> ${line}`.trimEnd()).join("\n");

/** @param {Conversation} conversation */
function asJson(conversation) {
  const { id, title, changedAt, settings } = conversation.heading;
  const turns = conversation.sides.flatMap((side, index) =>
    [...side.turns.values()].map((turn) => Conversation.recordOf(turn, index)));
  return JSON.stringify({ id, title, changed_at: new Date(changedAt).toISOString(), settings, turns }, null, 2);
}

/** @param {Conversation} conversation @param {"md" | "json"} kind */
export function saveAs(conversation, kind) {
  const name = conversation.name.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "conversation";
  if (kind === "md") download(`${name}.md`, "text/markdown", asMarkdown(conversation));
  else download(`${name}.json`, "application/json", asJson(conversation));
}

/** @param {string} name @param {string} type @param {string} text */
function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  Object.assign(make("a"), { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url));
}
