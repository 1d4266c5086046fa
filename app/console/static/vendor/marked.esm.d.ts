// What the console uses of marked.

export interface Token {
  type: string;
  raw: string;
  text: string;
  tokens?: Token[];
  depth?: number;
  lang?: string;
  href?: string;
  ordered?: boolean;
  start?: number | "";
  items?: Token[];
  checked?: boolean;
  escaped?: boolean;
  header?: Cell[];
  rows?: Cell[][];
  isDisplayed?: boolean;
}

export interface Cell {
  tokens: Token[];
  align: "left" | "center" | "right" | null;
}

export interface Extension {
  name: string;
  level: "block" | "inline";
  start(text: string): number | undefined;
  tokenizer(text: string, before: Token[]): Token | undefined;
}

export class Marked {
  constructor(options: { extensions: Extension[] });
  readonly defaults: object;
}

export class Lexer {
  constructor(options: object);
  readonly tokens: Token[] & { links: Record<string, object> };
  lex(markdown: string): Token[];
}
