// Reads what a model has written, beside the page: however long that takes, the page goes on.

import { Blocks } from "./blocks.js";
import { Code } from "./code.js";
import { Formulas } from "./math.js";
import { pruned } from "./pruned.js";
import { Tree } from "./tree.js";

/** @typedef {import("./tree.js").Part} Part */
/** @typedef {{ key: number, text: string, language?: string, isWhole: boolean }} Asked */

const MOST_ELEMENTS = 30_000; // a page lays out more of them for minutes, anew with each word
const MOST_TEXTS = 16; // of which it is remembered what was told last
/** @type {Map<number, { blocks: Blocks, parts: Part[] }>} */
const known = new Map();
const code = new Code();
const formulas = new Formulas();

self.addEventListener("message", async (/** @type {MessageEvent<Asked>} */ { data }) => {
  self.postMessage({ state: "reading" });
  const before = known.get(data.key);
  const blocks = before?.blocks ?? new Blocks();
  const read = () => parts(data, blocks);
  let now = read();
  const wanted = [...code.wanted(), ...formulas.wanted()];
  if (wanted.length > 0) {
    self.postMessage({ state: "fetching" });
    await Promise.all(wanted);
    self.postMessage({ state: "reading" });
    now = read();
  }
  known.delete(data.key); // and put it behind the others
  known.set(data.key, { blocks, parts: now });
  if (known.size > MOST_TEXTS) known.delete(known.keys().next().value ?? 0);
  self.postMessage({ state: "read", parts: pruned(before?.parts ?? [], now) });
});

/** @param {Asked} asked @param {Blocks} blocks @returns {Part[]} */
function parts({ text, language, isWhole }, blocks) {
  const tree = new Tree(code, formulas);
  try {
    const read = language === undefined ? tree.blocks(blocks.read(text, isWhole)) : [tree.code(text, language)];
    if (elementsIn(read) <= MOST_ELEMENTS) return read;
  } catch { /* it is nested too deep */ }
  return [["pre", { tabindex: "0" }, text]];
}

/** @param {Part[]} read @returns {number} */
function elementsIn(read) {
  let count = 0;
  for (const part of read) {
    if (!Array.isArray(part)) continue;
    const [, , ...inner] = part;
    count += 1 + elementsIn(inner);
  }
  return count;
}
