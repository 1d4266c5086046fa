// Formulas: where they stand in Markdown, and what they are as MathML.

/** @typedef {import("./tree.js").Part} Part */
/** @typedef {import("../../vendor/katex/katex.min.js").Formula} Formula */
/** @typedef {import("../../vendor/marked.esm.js").Token} Token */
/** @typedef {import("../../vendor/marked.esm.js").Extension} Extension */

const MOST_CHARACTERS = 4000; // a longer one is shown as it was written
const MOST_KNOWN = 500;
const OPTIONS = { output: "mathml", trust: false, strict: "ignore", maxExpand: 200, maxSize: 20, throwOnError: true };

// No blank line, so that a sign that stands alone takes nothing that is far behind it.
const TEX = String.raw`(?:\\[^\n]|[^\\$\n]|\n(?![ \t]*(?:\n|$)))`;
const DISPLAYED = new RegExp(String.raw`^\$\$(${TEX}+?)\$\$|^\\\[((?:\\(?!\])[^\n]|[^\\\n]|\n(?![ \t]*(?:\n|$)))+?)\\\]`);
const BLOCK = new RegExp(String.raw`^ {0,3}(?:${DISPLAYED.source.replaceAll("^", "")})[ \t]*(?:\n|$)`);
const WITHIN = /^\\\(((?:\\(?!\))[^\n]|[^\\\n]|\n(?![ \t]*(?:\n|$)))+?)\\\)/;
// As in Pandoc: no space inside, and no digit behind; nor words behind an amount, or a letter before.
const DOLLARS = /^\$(?![\s$])((?:\\[^\n]|[^\\$\n])*?(?:\\[^\s]|[^\\$\s]))\$(?![\d$])/;
const AMOUNT = /^\d[\s\S]*[\s(][A-Za-z]{2,}/;

/** @param {string} raw @param {string} text @param {boolean} isDisplayed @returns {Token} */
const found = (raw, text, isDisplayed) => ({ type: "math", raw, text: text.trim(), isDisplayed });

/** @type {Extension[]} */
export const EXTENSIONS = [
  {
    name: "math",
    level: "block",
    start: (text) => /(?<=\n) {0,3}(?:\$\$|\\\[)/.exec(text)?.index,
    tokenizer(text) {
      const match = BLOCK.exec(text);
      return match ? found(match[0], match[1] ?? match[2] ?? "", true) : undefined;
    },
  },
  {
    name: "math",
    level: "inline",
    start: (text) => /\$|\\[([]/.exec(text)?.index,
    tokenizer(text, before) {
      if (text[0] !== "$" && text[0] !== "\\") return undefined;
      const displayed = DISPLAYED.exec(text);
      if (displayed) return found(displayed[0], displayed[1] ?? displayed[2] ?? "", true);
      const [raw, tex = ""] = WITHIN.exec(text) ?? DOLLARS.exec(text) ?? [""];
      const isPrice = raw[0] === "$" && (AMOUNT.test(tex) || /\w$/.test(before.at(-1)?.raw ?? ""));
      return raw === "" || isPrice ? undefined : found(raw, tex, false);
    },
  },
];

export class Formulas {
  isMissing = false;
  isTried = false;
  /** @type {Map<string, Part | null>} */
  known = new Map();

  /**
   * As MathML, or as it was written where it is wrong, too long, or KaTeX is not there.
   * @param {string} tex @param {boolean} isDisplayed @param {string} raw @returns {Part}
   */
  formula(tex, isDisplayed, raw) {
    const part = tex.length > MOST_CHARACTERS ? null : this.read(tex, isDisplayed);
    if (part === null) return ["code", null, raw];
    return isDisplayed ? ["span", { class: "math displayed", tabindex: "0" }, part] : ["span", { class: "math" }, part];
  }

  /** @param {string} tex @param {boolean} displayMode @returns {Part | null} */
  read(tex, displayMode) {
    if (globalThis.katex === undefined) {
      this.isMissing = !this.isTried;
      return null;
    }
    const key = `${displayMode} ${tex}`;
    let part = this.known.get(key);
    if (part === undefined) {
      part = translated(tex, { ...OPTIONS, displayMode });
      if (this.known.size >= MOST_KNOWN) this.known.clear();
      this.known.set(key, part);
    }
    return part;
  }

  /** What has to be fetched for what was read. @returns {Promise<void>[]} */
  wanted() {
    if (!this.isMissing) return [];
    this.isMissing = false;
    this.isTried = true;
    return [import("../../vendor/katex/katex.min.js").then(() => {}, () => {})];
  }
}

/** @param {string} tex @param {object} options @returns {Part | null} */
function translated(tex, options) {
  try {
    const [math] = globalThis.katex.__renderToDomTree(tex, options).children ?? [];
    return math ? partOf(math) : null;
  } catch {
    return null;
  }
}

/** @param {Formula} formula @returns {Part} */
function partOf({ type, attributes = {}, text, children = [] }) {
  if (type === undefined) return text ?? "";
  const parts = children.map(partOf);
  return [type, attributes, ...(parts.every((part) => typeof part === "string") ? [parts.join("")] : parts)];
}
