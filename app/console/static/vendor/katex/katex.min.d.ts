// What the console uses of KaTeX, which puts itself into the global object where it is a module.

export interface Formula {
  type?: string;
  attributes?: Record<string, string>;
  text?: string;
  children?: Formula[];
}

declare global {
  var katex: { __renderToDomTree(tex: string, options: object): Formula };
}
