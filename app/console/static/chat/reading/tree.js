// What tokens of Markdown mean, as a tree of elements and texts that can be sent to the page.

import { decoded } from "./entities.js";

/** @typedef {import("../../vendor/marked.esm.js").Token} Token */
/** @typedef {import("../../vendor/marked.esm.js").Cell} Cell */
/** @typedef {Record<string, string> | null} Attributes */
/** @typedef {string | 0 | [string, Attributes, ...Part[]]} Part a text, what was there, or an element */

const MOST_LEVELS = 100; // of what is nested: a page that is nested deeper cannot be laid out
const LONG = 150; // rows: to find the widths of columns by all cells of more would take too long
const LINE_BREAK = /^<br\s*\/?>$/i;
const SAFE = /^https?:\/\//i; // `http:x` would lead to this very host
/** @type {Record<string, string>} */
const MARKS = { strong: "strong", em: "em", del: "del" };

export class Tree {
  level = 1; // of the last heading: the page has one of its own
  depth = 0;

  /** @param {import("./code.js").Code} highlighter @param {import("./math.js").Formulas} formulas */
  constructor(highlighter, formulas) {
    this.highlighter = highlighter;
    this.formulas = formulas;
  }

  /** @param {Token[]} tokens @returns {Part[]} */
  blocks(tokens) { return this.deeper(tokens, (token) => this.block(token)); }

  /** @param {Token[] | undefined} tokens @returns {Part[]} */
  inline(tokens) { return this.deeper(tokens ?? [], (token) => this.piece(token)); }

  /** @param {Token[]} tokens @param {(token: Token) => Part[]} read @returns {Part[]} */
  deeper(tokens, read) {
    if (++this.depth > MOST_LEVELS) throw new RangeError("too deep");
    const parts = tokens.flatMap(read);
    this.depth -= 1;
    return parts;
  }

  /** @param {Token} token @returns {Part[]} */
  block(token) {
    switch (token.type) {
      case "paragraph": return [["p", null, ...this.inline(token.tokens)]];
      case "heading": return [[this.heading(token.depth ?? 1), null, ...this.inline(token.tokens)]];
      case "code": return [this.code(`${token.text.replace(/\n$/, "")}\n`, token.lang ?? "")];
      case "blockquote": return [["blockquote", null, ...this.blocks(token.tokens ?? [])]];
      case "list": return [this.list(token)];
      case "table": return [this.table(token)];
      case "hr": return [["hr", null]];
      case "html": return LINE_BREAK.test(token.raw.trim()) ? [["br", null]] : [["p", null, token.raw.trimEnd()]];
      case "space": case "def": return [];
      default: return this.piece(token);
    }
  }

  // A heading is at most one step below the one before it, as those who go by them expect.
  /** @param {number} depth */
  heading(depth) {
    this.level = Math.min(depth + 1, this.level + 1, 6);
    return `h${this.level}`;
  }

  /** @param {string} text @param {string} language @returns {Part} */
  code(text, language) {
    const [name = ""] = language.split(/\s/, 1);
    /** @type {Part} */
    const bar = ["div", { class: "bar" }, ["span", null, name], ["button", null]];
    return ["div", { class: "code" }, bar, ["pre", { tabindex: "0" }, ["code", null, ...this.highlighter.lines(text, name)]]];
  }

  /** @param {Token} token @returns {Part} */
  list({ ordered, start, items = [] }) {
    const entries = items.map((item) => /** @type {Part} */ (["li", null, ...this.blocks(item.tokens ?? [])]));
    const isCounted = ordered && start !== 1;
    return [ordered ? "ol" : "ul", isCounted ? { start: String(start) } : null, ...entries];
  }

  /** @param {Token} token @returns {Part} */
  table({ header = [], rows = [] }) {
    /** @param {string} tag @param {Cell[]} cells @returns {Part} */
    const row = (tag, cells) => ["tr", null, ...cells.map(({ align, tokens }) => (
      /** @type {Part} */ ([tag, align && { align }, ...this.inline(tokens)])))];
    /** @type {Part} */
    const head = ["thead", null, row("th", header)];
    /** @type {Part} */
    const body = ["tbody", null, ...rows.map((cells) => row("td", cells))];
    const scroller = { class: "scroll", tabindex: "0", role: "group", "aria-label": "Table" };
    return ["div", scroller, ["table", rows.length > LONG ? { class: "long" } : null, head, ...(rows.length > 0 ? [body] : [])]];
  }

  /** @param {Token} token @returns {Part[]} */
  piece(token) {
    const { type, raw, text } = token;
    if (type in MARKS) return [[/** @type {string} */ (MARKS[type]), null, ...this.inline(token.tokens)]];
    switch (type) {
      case "text": return token.tokens ? this.inline(token.tokens) : [token.escaped ? text : decoded(raw)];
      case "codespan": return [["code", null, text]];
      case "br": return [["br", null]];
      case "link": return this.link(token, this.inline(token.tokens));
      // A picture is not loaded: whom it is asked from would learn that it was looked at.
      case "image": return this.link(token, [decoded(text) || "a picture"]);
      case "checkbox": return [this.box(token.checked ?? false), " "];
      case "math": return [this.formulas.formula(text, token.isDisplayed ?? false, raw.trim())];
      case "html": return LINE_BREAK.test(raw.trim()) ? [["br", null]] : [raw];
      default: return [text ?? raw];
    }
  }

  /** @param {Token} token @param {Part[]} parts @returns {Part[]} */
  link({ href = "" }, parts) {
    return [["a", SAFE.test(href) ? { href } : null, ...parts]];
  }

  /** @param {boolean} isDone @returns {Part} */
  box(isDone) {
    const attributes = { type: "checkbox", disabled: "", "aria-label": isDone ? "Done" : "To do" };
    return ["input", isDone ? { ...attributes, checked: "" } : attributes];
  }
}
