// The list of tenants: searched, filtered, sorted, with totals; what each does is told every two
// seconds while it is seen, and records and the month's usage once a minute.

import { button, field, make, put, rest } from "../../dom.js";
import { Fleet } from "./fleet.js";
import { alerting, emptiness, link } from "../panel.js";
import { COLUMNS, chosen, isActive, sorted } from "./rows.js";
import { VirtualTable } from "./virtual.js";

const POLL_MS = 2000;
const ANEW_MS = 60_000;
const KEPT = "partywall.tenants"; // what was searched for in this tab
/** @type {import("./rows.js").Choice} */
const ALL = { search: "", status: "", group: "", isActive: false, sort: null, isDown: true };
const STATUSES = [["all", ""], ["active", "active"], ["suspended", "suspended"], ["groups", "group"]];

export class List {
  /** @param {HTMLElement} element @param {import("../../api.js").Api} api @param {Element[]} hands */
  constructor(element, api, hands) {
    this.element = element;
    this.hands = hands;
    this.fleet = new Fleet(api);
    this.choice = { ...ALL, ...JSON.parse(sessionStorage.getItem(KEPT) ?? "{}") };
    this.order = /** @type {string[]} */ ([]);
    this.told = alerting();
    this.summary = make("p", "hint", "Loading tenants…");
    this.tools = this.filters();
    this.table = new VirtualTable({
      label: "All tenants", columns: COLUMNS, first: ({ id }) => link(id, `#tenants/${id}`),
    });
    this.heads = this.headings();
    this.totals = this.table.foot.insertRow();
    for (const _ of COLUMNS) this.totals.insertCell();
    this.nothing = make("div");
    element.append(this.bar(), this.told, this.summary, this.table.region, this.nothing);
    this.since = ANEW_MS; // milliseconds since all was asked
    this.ending = new AbortController();
    this.poll();
  }

  close() {
    this.ending.abort();
    this.table.close();
  }

  bar() {
    const bar = make("div", "across");
    const hands = make("div", "tools");
    hands.append(...this.hands);
    bar.append(this.tools, hands);
    return bar;
  }

  filters() {
    const form = make("form", "tools filters");
    const active = field("Active now", "isActive", { type: "checkbox", checked: this.choice.isActive });
    active.className = "check";
    form.append(
      field("Search", "search", { type: "search", placeholder: "id or name", value: this.choice.search }),
      this.select("Status", "status", STATUSES),
      this.select("Share group", "group", [["all", ""]]),
      active,
    );
    form.addEventListener("input", () => this.choose(Object.fromEntries(new FormData(form))));
    form.addEventListener("submit", (event) => event.preventDefault());
    return form;
  }

  /** @param {string} label @param {"status" | "group"} name @param {string[][]} options */
  select(label, name, options) {
    const outer = field(label, name, { tag: "select" });
    outer.lastElementChild?.append(...options.map(([title, value]) => new Option(title, value)));
    Object.assign(outer.lastElementChild ?? {}, { value: this.choice[name] });
    return outer;
  }

  /** @param {Record<string, any>} values */
  choose(values) {
    Object.assign(this.choice, values, { isActive: "isActive" in values });
    this.keep();
    this.table.region.scrollTop = 0;
    this.draw(true);
  }

  keep() { sessionStorage.setItem(KEPT, JSON.stringify(this.choice)); }

  headings() {
    const parts = this.table.head.insertRow();
    const titles = this.table.head.insertRow();
    for (const part of ["", "Now", "This month"]) {
      const of = COLUMNS.filter((column) => column.part === part);
      const cell = part ? make("th", "part", part) : make("td");
      cell.colSpan = of.length;
      if (part) cell.setAttribute("scope", "colgroup");
      parts.append(cell);
    }
    return COLUMNS.map(({ name, title }) => {
      const cell = make("th");
      cell.scope = "col";
      cell.append(button(title, () => this.sortBy(name)));
      titles.append(cell);
      return cell;
    });
  }

  // By a column, then the other way, then as at first.
  /** @param {string} name */
  sortBy(name) {
    const isText = ["id", "name", "status", "group"].includes(name);
    const { sort, isDown } = this.choice;
    if (sort !== name) Object.assign(this.choice, { sort: name, isDown: !isText });
    else if (isDown !== isText) this.choice.isDown = isText;
    else Object.assign(this.choice, { sort: null, isDown: true });
    this.keep();
    this.table.region.scrollTop = 0;
    this.draw(true);
  }

  // It is come back to: what was changed meanwhile shows.
  again() {
    this.draw(true);
    this.since = ANEW_MS;
    this.turn();
  }

  async poll() {
    while (!this.ending.signal.aborted) {
      await this.turn();
      await rest(POLL_MS);
      this.since += POLL_MS;
    }
  }

  async turn() {
    const { signal } = this.ending;
    if (document.hidden || this.element.hidden) return;
    const isAnew = this.since >= ANEW_MS;
    try {
      if (isAnew) this.since = 0;
      await (isAnew ? this.anew() : this.fleet.look(signal).then(() => this.draw()));
      put(this.told, "");
    } catch (error) {
      if (signal.aborted) return;
      if (isAnew) this.since = ANEW_MS;
      put(this.told, error.message);
    }
  }

  // Everything at once: what has come is shown.
  async anew() {
    const { signal } = this.ending;
    const { fleet } = this;
    const draw = () => this.draw();
    await Promise.all([
      fleet.load(signal, draw), fleet.look(signal).then(draw), fleet.count(signal).then(draw),
    ]);
  }

  // The order stays while somebody is about to choose from it, unless they have asked for another.
  draw(isAsked = false) {
    if (this.ending.signal.aborted) return;
    this.offerGroups();
    const all = this.fleet.rows();
    const rows = chosen(all, this.choice);
    const stays = !isAsked && this.fleet.isWhole && this.table.isInUse;
    const places = new Map(this.order.map((id, at) => [id, at]));
    const inOrder = stays
      ? rows.toSorted((one, other) => (places.get(one.id) ?? Infinity) - (places.get(other.id) ?? Infinity) || 0)
      : sorted(rows, this.choice);
    this.order = inOrder.map(({ id }) => id);
    this.heads.forEach((cell, at) => {
      const isSorted = COLUMNS[at].name === this.choice.sort;
      cell.ariaSort = isSorted ? (this.choice.isDown ? "descending" : "ascending") : "none";
    });
    COLUMNS.forEach(({ all: together }, at) => put(this.totals.cells[at], together?.(rows) ?? ""));
    put(this.heads.at(-1)?.firstElementChild ?? this.heads[0], ["Spent", this.fleet.currency].filter(Boolean).join(" "));
    put(this.summary, this.said(all, rows));
    this.table.region.hidden = rows.length === 0;
    this.table.show(inOrder);
    this.sayNothing(all.length, rows.length);
  }

  /** @param {import("./rows.js").Row[]} all @param {import("./rows.js").Row[]} rows */
  said(all, rows) {
    const groups = all.filter(({ status }) => status === "group").length;
    const known = counted(all.length - groups, "tenant") + (groups ? ` and ${counted(groups, "share group")}` : "");
    const shown = rows.length === all.length ? known : `${rows.length.toLocaleString("en")} of ${known}`;
    const still = this.fleet.isWhole ? "" : " so far";
    const first = this.choice.sort === null ? ", those that are active first" : "";
    return `${shown}${still}, ${rows.filter(isActive).length.toLocaleString("en")} active now${first}`;
  }

  /** @param {number} known @param {number} shown */
  sayNothing(known, shown) {
    const what = shown > 0 ? "" : known > 0 ? "found" : this.fleet.isWhole ? "there" : "";
    if (this.nothing.dataset.what === what) return;
    this.nothing.dataset.what = what;
    const told = {
      "": [],
      found: [emptiness("No tenant is like that", "Search for less, or look at all.", button("Show all", () => this.clear()))],
      there: [emptiness("No tenants yet", "A tenant is a customer: it has API keys, limits, and a cache that no other sees.")],
    };
    this.nothing.replaceChildren(...told[/** @type {keyof typeof told} */ (what)]);
  }

  clear() {
    Object.assign(this.choice, ALL);
    this.tools.replaceWith(this.tools = this.filters());
    delete this.tools.dataset.groups;
    this.keep();
    this.draw(true);
  }

  offerGroups() {
    const groups = this.fleet.groups.toSorted();
    if (this.tools.dataset.groups === groups.join()) return;
    this.tools.dataset.groups = groups.join();
    const select = this.tools.elements.namedItem("group");
    if (!(select instanceof HTMLSelectElement)) return;
    select.replaceChildren(new Option("all", ""), ...groups.map((id) => new Option(id)));
    select.value = groups.includes(this.choice.group) ? this.choice.group : "";
  }
}

/** @param {number} value @param {string} what */
function counted(value, what) { return `${value.toLocaleString("en")} ${what}${value === 1 ? "" : "s"}`; }
