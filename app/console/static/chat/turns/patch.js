// A tree of what was read, put into the page in place: what is as it was stays, selected or not.

import { copier } from "../../dom.js";

/** @typedef {import("../reading/tree.js").Part} Part */

// Of work, before the page may do what else there is to do: each part has to be laid out, too.
const SLICE_MS = 8;
const SLICE = 250;
const ADDRESS = /^https?:\/\//i;
const HTML = new Set([
  "a", "blockquote", "br", "button", "code", "del", "div", "em", "h2", "h3", "h4", "h5", "h6", "hr", "input", "li",
  "ol", "p", "pre", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
]);
const MATHML = new Set([
  "annotation", "math", "menclose", "mfrac", "mi", "mlabeledtr", "mn", "mo", "mover", "mpadded", "mphantom", "mroot",
  "mrow", "mspace", "msqrt", "mstyle", "msub", "msubsup", "msup", "mtable", "mtd", "mtext", "mtr", "munder",
  "munderover", "semantics",
]);
const ATTRIBUTES = new Set([
  "align", "aria-label", "checked", "class", "disabled", "href", "role", "start", "tabindex", "type",
  // of MathML; no colours, as nobody knows that they can be read here
  "accent", "accentunder", "columnalign", "columnlines", "columnspacing", "depth", "display", "displaystyle",
  "encoding", "fence", "height", "linebreak", "linethickness", "lspace", "mathsize", "mathvariant", "maxsize",
  "minsize", "notation", "rowlines", "rowspacing", "rspace", "scriptlevel", "separator", "stretchy", "symmetric",
  "voffset", "width",
]);

/**
 * Gives an element these children; `grown`, which has them laid out, is called behind each slice of
 * the work.
 * @param {Element} element @param {Part[]} parts @param {() => void} grown
 */
export async function patch(element, parts, grown) {
  let end = performance.now() + SLICE_MS;
  let count = 0;
  for (const _ of steps(element, parts)) {
    if (++count < SLICE && performance.now() < end) continue;
    await pause();
    grown();
    await pause();
    count = 0;
    end = performance.now() + SLICE_MS;
  }
  grown();
}

// Ends the task, and goes on in another one, as soon as nothing else is to be done.
/** @returns {Promise<void>} */
function pause() {
  const { scheduler } = /** @type {{ scheduler?: { yield?(): Promise<void> } }} */ (globalThis);
  return scheduler?.yield?.() ?? new Promise((resolve) => { setTimeout(resolve); });
}

/** @param {Element} parent @param {Part[]} parts @returns {Generator<void>} */
function* steps(parent, parts) {
  let node = parent.firstChild;
  for (const part of parts) {
    if (part === 0) {
      node = node?.nextSibling ?? null;
      continue;
    }
    const put = typeof part === "string" ? textFor(node, part) : elementFor(node, part[0], parent);
    if (node === null) parent.append(put);
    else if (node !== put) node.replaceWith(put);
    if (put instanceof Element && typeof part !== "string") {
      const [, attributes, ...inner] = part;
      describe(put, attributes);
      if (put.localName !== "button") yield* steps(put, inner);
    }
    node = put.nextSibling;
    yield;
  }
  while (node !== null) {
    const next = node.nextSibling;
    node.remove();
    node = next;
  }
}

// Only behind what is alike is a text changed: so what is selected before stays selected.
/** @param {ChildNode | null} node @param {string} text @returns {Text} */
function textFor(node, text) {
  if (!(node instanceof Text)) return new Text(text);
  const { data } = node;
  let same = text.startsWith(data) ? data.length : 0;
  while (same < data.length && data[same] === text[same]) same += 1;
  if (same < data.length || same < text.length) node.replaceData(same, data.length - same, text.slice(same));
  return node;
}

/** @param {ChildNode | null} node @param {string} tag @param {Element} parent @returns {Element} */
function elementFor(node, tag, parent) {
  if (node instanceof Element && node.localName === tag) return node;
  if (MATHML.has(tag)) return document.createElementNS("http://www.w3.org/1998/Math/MathML", tag);
  if (!HTML.has(tag)) return document.createElement("span");
  if (tag === "button") {
    return copier("the code", () => parent.closest(".code")?.querySelector("code")?.textContent ?? "");
  }
  const element = document.createElement(tag);
  if (element instanceof HTMLAnchorElement) Object.assign(element, { target: "_blank", rel: "noopener noreferrer" });
  return element;
}

/** @param {Element} element @param {Record<string, string> | null} attributes */
function describe(element, attributes) {
  if (element.localName === "button") return;
  for (const name of element.getAttributeNames()) {
    if (ATTRIBUTES.has(name) && attributes?.[name] === undefined) element.removeAttribute(name);
  }
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (!ATTRIBUTES.has(name) || (name === "href" && !ADDRESS.test(value))) continue;
    if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  }
}
