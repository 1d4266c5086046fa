// Who changed what, and when: of one owner, or of all.

import { button, row, table } from "../dom.js";
import { alerting, emptiness, load, telling } from "./panel.js";

const PAGE = 20;
const COLUMNS = ["When", "Who", "What", "Whose", "Target", "Before", "After"];

/** @param {HTMLElement} place @param {import("../api.js").Api} api @param {string | null} owner */
export function auditOf(place, api, owner) {
  const of = owner === null ? "" : `&owner=${encodeURIComponent(owner)}`;
  const read = (behind = "") => api.read(`/audit?limit=${PAGE}${of}${behind}`);
  return load(place, "the audit", async () => {
    let { entries, next } = await read();
    if (entries.length === 0) return [emptiness("Nothing was changed", "Each write of an operator is listed here.")];
    const { region, body } = table("Audit", COLUMNS);
    region.classList.add("audit");
    const told = alerting();
    const add = () => {
      for (const entry of entries) row(body, cellsOf(entry));
      more.hidden = next === null;
    };
    const more = button("Older ones", telling(told, async () => {
      more.disabled = true;
      try {
        ({ entries, next } = await read(`&after=${next}`));
        add();
      } finally {
        more.disabled = false;
      }
    }));
    add();
    return [region, told, more];
  });
}

/** @param {any} entry */
function cellsOf({ at, actor, action, owner, target, before, after }) {
  const [was, is] = [flat(before), flat(after)];
  const changed = Object.keys({ ...was, ...is }).filter((name) => was[name] !== is[name]);
  const shown = (/** @type {Record<string, string>} */ values) => changed.filter((name) => name in values)
    .map((name) => `${name}: ${values[name]}`).join(", ");
  return [at.replace("T", " ").slice(0, 19), actor, action, owner, target, shown(was), shown(is)];
}

// A record's fields as JSON, those of its limits among them; none of nothing.
/** @param {any} record @returns {Record<string, string>} */
function flat(record) {
  const { limits, ...fields } = record ?? {};
  const bounds = Object.entries(limits ?? {}).map(([name, value]) => [`limits.${name}`, value]);
  return Object.fromEntries([...Object.entries(fields), ...bounds]
    .map(([name, value]) => [name, JSON.stringify(value)]));
}
