// Markdown as marked's tokens: of a text that grows, what cannot change any more is not read again.

import { Lexer, Marked } from "../../vendor/marked.esm.js";
import { EXTENSIONS } from "./math.js";

/** @typedef {import("../../vendor/marked.esm.js").Token} Token */

const { defaults } = new Marked({ extensions: EXTENSIONS });

export class Blocks {
  /** @type {Token[]} */
  tokens = [];
  /** @type {Record<string, object>} */
  links = {};
  text = "";

  /**
   * The blocks of a text. A whole one is read from its beginning: links that were defined late, or
   * with a title that ended late, hold for all of it.
   * @param {string} text @param {boolean} isWhole @returns {Token[]}
   */
  read(text, isWhole) {
    const written = text.replaceAll(/\r\n?/g, "\n");
    const { count, length } = isWhole ? { count: 0, length: 0 } : this.settled(written);
    const lexer = new Lexer(defaults);
    if (count > 0) Object.assign(lexer.tokens.links, this.links);
    const rest = [...lexer.lex(written.slice(length))];
    const { links } = lexer.tokens;
    if (count > 0 && Object.keys(links).length > Object.keys(this.links).length) return this.read(text, true);
    this.tokens = [...this.tokens.slice(0, count), ...rest];
    this.links = links;
    this.text = written;
    return this.tokens;
  }

  /**
   * How many of the blocks that were read last hold for a text that goes on from it, and how long
   * they are: those before a blank line, once the line behind it is whole, so that it can join none.
   * @param {string} text
   */
  settled(text) {
    let length = 0;
    let found = { count: 0, length: 0 };
    if (!text.startsWith(this.text)) return found;
    for (const [index, { type, raw }] of this.tokens.entries()) {
      if (!text.startsWith(raw, length)) break;
      length += raw.length;
      if (type === "space" && this.text.includes("\n", length)) found = { count: index + 1, length };
    }
    return found;
  }
}
