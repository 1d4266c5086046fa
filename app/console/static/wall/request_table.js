// Requests as a table of which one can be chosen, by pointer or keyboard; some of them, as one wishes.

import { button, make, put } from "../dom.js";

/** @typedef {import("./requests.js").WallRequest} WallRequest */

const NEVER = "–";
const SHORT = 13; // characters of an id that is shortened
const COLUMNS = ["Time", "Request", "Tenant", "Found of its prompt", "State"];
const STATES = ["running", "waiting", "preempted", "finished"];
let numTables = 0;

export class RequestTable {
  /**
   * @param {HTMLElement} element
   * @param {string[]} reasons why what was found may have ended
   * @param {(id: string | null) => void} chosen is told of a choice
   * @param {AbortSignal} signal
   */
  constructor(element, reasons, chosen, signal) {
    this.name = `requests-${numTables++}`;
    this.told = chosen;
    /** @type {string | null} */
    this.only = null; // a tenant, of whom alone they are to be
    /** @type {string | null} */
    this.chosen = null;
    /** @type {WallRequest[]} */
    this.all = [];
    /** @type {WallRequest[]} */
    this.shown = [];
    /** @type {Map<string, Row>} */
    this.rows = new Map(); // by the request's id
    this.numNamed = 0;
    this.state = chooser("State", STATES);
    this.reason = chooser("Broke as", reasons);
    this.count = make("p", "hint");
    this.tools = make("div", "tools");
    this.tools.append(labelled("State", this.state), labelled("What was found ended", this.reason), this.count);
    this.table = document.createElement("table");
    this.table.className = "requests";
    this.table.setAttribute("role", "grid");
    this.table.tabIndex = 0;
    this.table.ariaLabel = "Requests";
    const head = this.table.createTHead().insertRow();
    for (const title of COLUMNS) {
      const cell = make("th", "", title);
      cell.setAttribute("scope", "col");
      head.append(cell);
    }
    this.body = this.table.createTBody();
    this.frame = make("div", "requests-frame");
    this.frame.append(this.table);
    element.append(this.tools, this.frame);
    for (const one of [this.state, this.reason]) one.addEventListener("change", () => this.show(), { signal });
    this.table.addEventListener("keydown", (event) => this.step(event), { signal });
    this.body.addEventListener("click", (event) => {
      const target = /** @type {Element} */ (event.target);
      const id = target.closest("button") ? undefined : target.closest("tr")?.dataset.id;
      if (id) this.choose(id === this.chosen ? null : id);
    }, { signal });
  }

  /** @param {WallRequest[]} requests */
  take(requests) {
    this.all = requests;
    this.show();
  }

  // Those that are wished for, in their order.
  show() {
    this.shown = this.all.filter((one) => (this.only === null || one.tenant === this.only)
      && (!this.state.value || one.state === this.state.value)
      && (!this.reason.value || one.broke?.reason === this.reason.value));
    const ids = new Set(this.shown.map(({ id }) => id));
    for (const [id, { element }] of this.rows) {
      if (ids.has(id)) continue;
      element.remove();
      this.rows.delete(id);
    }
    this.shown.forEach((one, index) => {
      const { element, take } = this.rowOf(one);
      take(one);
      const there = this.body.children[index];
      if (there !== element) this.body.insertBefore(element, there ?? null);
    });
    const { length } = this.all;
    put(this.count, this.shown.length === length ? "" : `${this.shown.length} of ${length} requests`);
    this.frame.hidden = this.shown.length === 0;
    this.tools.hidden = length === 0;
    if (this.chosen !== null && !ids.has(this.chosen)) this.choose(null);
    else this.mark();
  }

  /** @param {WallRequest} one */
  rowOf({ id }) {
    let row = this.rows.get(id);
    if (row === undefined) {
      row = newRow(id, `${this.name}-${this.numNamed++}`);
      this.rows.set(id, row);
    }
    return row;
  }

  /** @param {string | null} id */
  choose(id) {
    this.chosen = id;
    this.mark();
    this.told(id);
  }

  mark() {
    for (const [id, { element }] of this.rows) {
      const isChosen = String(id === this.chosen);
      if (element.ariaSelected !== isChosen) element.ariaSelected = isChosen;
    }
    const active = this.rows.get(this.chosen ?? "");
    if (active) this.table.setAttribute("aria-activedescendant", active.element.id);
    else this.table.removeAttribute("aria-activedescendant");
  }

  /** @param {KeyboardEvent} event */
  step(event) {
    const last = this.shown.length - 1;
    const at = this.shown.findIndex((one) => one.id === this.chosen);
    /** @type {Record<string, number>} */
    const places = {
      ArrowDown: Math.min(last, at + 1), ArrowUp: Math.max(0, at - 1), Home: 0, End: last,
      Enter: Math.max(0, at), Escape: -1,
    };
    const next = places[event.key];
    if (next === undefined || last < 0 || event.target !== this.table) return;
    event.preventDefault();
    this.choose(next < 0 ? null : this.shown[next].id);
    this.rows.get(this.chosen ?? "")?.element.scrollIntoView({ block: "nearest" });
  }
}

/**
 * @typedef {object} Row
 * @property {HTMLTableRowElement} element
 * @property {(one: WallRequest) => void} take
 */

/**
 * @param {string} id @param {string} name
 * @returns {Row}
 */
function newRow(id, name) {
  const element = document.createElement("tr");
  element.id = name;
  element.dataset.id = id;
  element.ariaSelected = "false";
  const time = make("time");
  const copy = copying(id);
  const short = make("span", "", shortened(id));
  short.title = id;
  const tenant = make("span");
  const bar = make("i", "share");
  const part = make("b");
  bar.append(part);
  const found = make("span");
  const state = make("span", "state");
  for (const cell of [[time], [short, copy], [tenant], [bar, found], [state]]) {
    const inner = element.insertCell();
    inner.setAttribute("role", "gridcell");
    inner.append(...cell);
  }
  return {
    element,
    take(one) {
      put(time, new Date(one.asked_at * 1000).toLocaleTimeString("en-GB"));
      put(tenant, one.tenant);
      const share = one.cached_tokens === null ? null : one.cached_tokens / Math.max(1, one.prompt_tokens);
      part.style.width = `${100 * (share ?? 0)}%`;
      put(found, share === null ? NEVER : `${Math.floor(100 * share)} %`);
      put(state, one.state);
      if (state.dataset.is !== one.state) state.dataset.is = one.state;
    },
  };
}

/** @param {string} id */
function shortened(id) {
  return id.length <= SHORT ? id : `${id.slice(0, SHORT - 5)}…${id.slice(-4)}`;
}

/**
 * For the pointer: who uses the keyboard has one beside what is told of the request.
 * @param {string} id
 */
function copying(id) {
  const element = button("Copy", async () => {
    await navigator.clipboard.writeText(id);
    put(element, "Copied");
    setTimeout(() => put(element, "Copy"), 2000);
  });
  Object.assign(element, { tabIndex: -1, ariaLabel: `Copy ${id}`, className: "copy", title: "Copy the id" });
  element.hidden = navigator.clipboard === undefined;
  return element;
}

/** @param {string} label @param {string[]} values */
function chooser(label, values) {
  const element = document.createElement("select");
  element.append(new Option("any", ""), ...values.map((one) => new Option(one.replaceAll("_", " "), one)));
  element.name = label.split(" ")[0].toLowerCase();
  return element;
}

/** @param {string} text @param {HTMLElement} element */
function labelled(text, element) {
  const label = make("label", "", `${text} `);
  label.append(element);
  return label;
}
