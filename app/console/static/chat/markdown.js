// What a model has written, as elements that can do nothing but be read.

import { Marked } from "../vendor/marked.esm.js";
import { copier, make } from "../dom.js";
import purify from "../vendor/purify.es.mjs";

const ALLOWED = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li",
    "ol", "p", "pre", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["href", "start"],
  ALLOWED_URI_REGEXP: /^https?:/i,
  RETURN_DOM_FRAGMENT: true,
};
const LINE_BREAK = /^<br\s*\/?>$/i;
const NAMES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };

// HTML is shown as it was written, but for breaks, which tables need: what is not parsed cannot ask
// for anything that the page's policy would have to refuse.
const marked = new Marked({
  renderer: {
    html: ({ text }) => (LINE_BREAK.test(text.trim()) ? "<br>" : text.replace(/[&<>]/g, (one) => NAMES[one])),
  },
});

export function rendered(text) {
  let markup;
  try {
    markup = marked.parse(text, { async: false });
  } catch { // it is nested too deep
    return Object.assign(document.createElement("pre"), { textContent: text, tabIndex: 0 });
  }
  const fragment = purify.sanitize(markup, ALLOWED);
  for (const link of fragment.querySelectorAll("a")) {
    Object.assign(link, { target: "_blank", rel: "noopener noreferrer" });
  }
  // What is too wide can be moved by the keyboard as well.
  for (const block of fragment.querySelectorAll("pre")) {
    block.tabIndex = 0;
    const frame = make("div", "code");
    block.replaceWith(frame);
    frame.append(block, copier("the code", () => block.textContent));
  }
  return fragment;
}
