// Characters that Markdown names as HTML does: those that models use, and any by its number.

const REFERENCE = /&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|(\w{2,8}));/g;
/** @type {Record<string, string>} */
const NAMED = {
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", reg: "®", trade: "™",
  hellip: "…", mdash: "—", ndash: "–", lsquo: "‘", rsquo: "’", ldquo: "“", rdquo: "”", laquo: "«", raquo: "»",
  bull: "•", middot: "·", deg: "°", plusmn: "±", times: "×", divide: "÷", minus: "−", frac12: "½", sup2: "²",
  micro: "µ", le: "≤", ge: "≥", ne: "≠", asymp: "≈", infin: "∞", larr: "←", rarr: "→", uarr: "↑", darr: "↓",
  harr: "↔", rArr: "⇒", euro: "€", pound: "£", yen: "¥", cent: "¢", sect: "§", para: "¶", check: "✓",
  alpha: "α", beta: "β", gamma: "γ", delta: "δ", lambda: "λ", mu: "μ", pi: "π", sigma: "σ", omega: "ω",
  Delta: "Δ", Sigma: "Σ", Omega: "Ω", sum: "∑", radic: "√", thinsp: "\u2009", ensp: "\u2002", emsp: "\u2003",
};

/** @param {string} text @returns {string} */
export function decoded(text) {
  if (!text.includes("&")) return text;
  return text.replace(REFERENCE, (whole, decimal, hex, name) => (
    name ? NAMED[name] ?? whole : character(parseInt(decimal ?? hex, decimal ? 10 : 16))));
}

/** @param {number} code @returns {string} */
function character(code) {
  const isNone = code === 0 || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff);
  return isNone ? "\ufffd" : String.fromCodePoint(code);
}
