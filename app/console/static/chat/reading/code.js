// Code in the colours of its language, which is fetched when a text has some.

/** @typedef {import("./tree.js").Part} Part */
/** @typedef {import("../../vendor/highlight/core.js").Scoped} Scoped */

const MOST_CHARACTERS = 200_000; // what is longer stays plain
const GROUP = 32; // lines that are laid out for themselves: more of them leave these as they are
/** @type {Record<string, string>} other names of languages */
const ALIASES = {
  bash: "sh shell zsh console shellscript terminal", cpp: "c++ cc cxx hpp h++", c: "h", csharp: "cs c#",
  diff: "patch", dockerfile: "docker", go: "golang", haskell: "hs", ini: "toml conf cfg",
  javascript: "js jsx mjs cjs node", json: "jsonc json5 jsonl", kotlin: "kt", makefile: "make mk", markdown: "md",
  powershell: "ps1 pwsh ps", python: "py python3 py3 pyi", ruby: "rb", rust: "rs",
  sql: "postgresql postgres sqlite mysql", typescript: "ts tsx", xml: "html svg xhtml htm", yaml: "yml",
  css: "", java: "", lua: "", php: "", r: "", scala: "", swift: "",
};
/** @type {Map<string, string>} */
const NAMES = new Map(Object.entries(ALIASES).flatMap(([name, others]) => (
  [name, ...others.split(" ")].map((one) => [one, name]))));
/** @type {Record<string, string[]>} what stands in others, in the same breath */
const WITHIN = { xml: ["css", "javascript"], markdown: ["xml"], php: ["xml"], dockerfile: ["bash"] };

export class Code {
  /** @type {typeof import("../../vendor/highlight/core.js").default | null} */
  highlighter = null;
  /** @type {Set<string>} */
  missing = new Set();
  /** @type {Set<string>} those that are there, and those that could not be fetched */
  tried = new Set();
  /** @type {[string, string, Part[]][]} what was highlighted last, as most of a text stays as it is */
  recent = [];

  /** @param {string} text @param {string} alias @returns {Part[]} */
  lines(text, alias) {
    const name = NAMES.get(alias.toLowerCase());
    if (name === undefined || text.length > MOST_CHARACTERS) return grouped([["", text]]);
    if (!this.tried.has(name)) this.missing.add(name);
    if (!this.highlighter?.getLanguage(name)) return grouped([["", text]]);
    const known = this.recent.find(([one, of]) => one === text && of === name);
    if (known) return known[2];
    const { rootNode } = this.highlighter.highlight(text, { language: name, ignoreIllegals: true })._emitter;
    const lines = grouped(flat(rootNode, ""));
    this.recent = [[text, name, lines], ...this.recent.slice(0, 99)];
    return lines;
  }

  /** What has to be fetched for what was read. @returns {Promise<void>[]} */
  wanted() {
    const names = new Set([...this.missing].flatMap((name) => [name].concat(WITHIN[name] ?? [])));
    this.missing.clear();
    return Array.from(names, (name) => this.fetch(name));
  }

  /** @param {string} name */
  async fetch(name) {
    if (this.tried.has(name)) return;
    this.tried.add(name);
    try {
      const { default: core } = await import("../../vendor/highlight/core.js");
      core.registerLanguage(name, (await import(`../../vendor/highlight/${name}.js`)).default);
      this.highlighter = core;
    } catch { /* it is shown without colours */ }
  }
}

/**
 * Texts with the kind of each: of what is nested, the innermost.
 * @param {Scoped} node @param {string} kind @returns {[string, string][]}
 */
function flat({ children }, kind) {
  return children.flatMap((child) => (typeof child === "string"
    ? [/** @type {[string, string]} */ ([kind, child])]
    : flat(child, child.scope?.split(".")[0] ?? kind)));
}

/** @param {[string, string][]} texts @returns {Part[]} */
function grouped(texts) {
  /** @type {Part[]} */
  const groups = [];
  /** @type {Part[]} */
  let group = [];
  let count = 0;
  const close = () => {
    if (group.length > 0) groups.push(["span", { class: "lines" }, ...group]);
    group = [];
    count = 0;
  };
  /** @param {string} kind @param {string} text */
  const add = (kind, text) => {
    const last = group.at(-1);
    if (kind !== "") group.push(["span", { class: `hl-${kind}` }, text]);
    else if (typeof last === "string") group[group.length - 1] = last + text;
    else group.push(text);
  };
  for (const [kind, text] of texts) {
    for (const line of text.split(/(?<=\n)/)) {
      if (line !== "") add(kind, line);
      if (line.endsWith("\n") && ++count === GROUP) close();
    }
  }
  close();
  return groups;
}
