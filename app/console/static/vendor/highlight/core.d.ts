// What the console uses of highlight.js.

export interface Scoped {
  scope?: string;
  children: (Scoped | string)[];
}

declare const highlighter: {
  registerLanguage(name: string, definition: unknown): void;
  getLanguage(name: string): object | undefined;
  highlight(code: string, options: { language: string; ignoreIllegals: true }): { _emitter: { rootNode: Scoped } };
};
export default highlighter;
