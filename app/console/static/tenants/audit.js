// Who changed what, and when: of one owner, or of all.

import { button, row, table } from "../dom.js";

const PAGE = 20;
const COLUMNS = ["When", "Who", "What", "Whose", "Target", "Before", "After"];

export function auditOf(api, owner, tell) {
  const { region, body } = table("Audit", COLUMNS);
  let after = null;
  const more = button("Older ones", async () => {
    more.disabled = true;
    try {
      const of = owner === null ? "" : `&owner=${encodeURIComponent(owner)}`;
      const behind = after === null ? "" : `&after=${after}`;
      const { entries, next } = await api.read(`/audit?limit=${PAGE}${of}${behind}`);
      for (const entry of entries) row(body, cellsOf(entry));
      after = next;
      more.hidden = next === null;
    } catch (error) {
      tell(error);
    } finally {
      more.disabled = false;
    }
  });
  more.click();
  return [region, more];
}

function cellsOf({ at, actor, action, owner, target, before, after }) {
  const [was, is] = [flat(before), flat(after)];
  const changed = Object.keys({ ...was, ...is }).filter((name) => was[name] !== is[name]);
  const shown = (values) => changed.filter((name) => name in values)
    .map((name) => `${name}: ${values[name]}`).join(", ");
  return [at.replace("T", " ").slice(0, 19), actor, action, owner, target, shown(was), shown(is)];
}

// A record's fields as JSON, those of its limits among them; none of nothing.
function flat(record) {
  const { limits, ...fields } = record ?? {};
  const bounds = Object.entries(limits ?? {}).map(([name, value]) => [`limits.${name}`, value]);
  return Object.fromEntries([...Object.entries(fields), ...bounds]
    .map(([name, value]) => [name, JSON.stringify(value)]));
}
