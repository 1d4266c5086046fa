// What the console uses of DOMPurify.

declare const purify: {
  sanitize(markup: string, options: object & { RETURN_DOM_FRAGMENT: true }): DocumentFragment;
};
export default purify;
