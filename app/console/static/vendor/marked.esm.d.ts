// What the console uses of marked.

export interface Token {
  type: string;
  raw: string;
  text: string;
}

export class Marked {
  constructor(options: { renderer?: { html?: (token: { text: string }) => string } });
  parse(markdown: string, options: { async: false }): string;
  lexer(markdown: string): Token[];
  parser(tokens: Token[]): string;
}
