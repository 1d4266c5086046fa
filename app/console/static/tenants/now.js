// What a tenant or a share group does now, and used this month, told every two seconds while it is seen.

import { make, put, rest } from "../dom.js";
import { COLUMNS, rowOf } from "./all/rows.js";

const POLL_MS = 2000;
const TOLD = new Set(["streams", "running", "waiting", "held", "cached", "leased", "found", "requests", "tokens", "spent"]);
const OF_GROUP = new Set(["held", "cached"]);

/** @param {import("../api.js").Api} api @param {string} id @param {() => any} record */
export function nowOf(api, id, record) {
  const list = make("dl", "now");
  const isGroup = id.startsWith("@");
  const columns = COLUMNS.filter(({ name }) => (isGroup ? OF_GROUP : TOLD).has(name));
  const values = columns.map(({ name, title, part }) => {
    const [item, value] = [make("div"), make("dd", "", "–")];
    const what = name === "held" ? "Blocks held" : title;
    item.append(make("dt", "", part === "Now" ? what : `${what} this month`), value);
    list.append(item);
    return value;
  });
  const follow = async () => {
    /** @type {any} */
    let used = null;
    for (let turn = 0; turn === 0 || list.isConnected; turn += 1) {
      if (!document.hidden) {
        try {
          const live = await api.read("/live");
          if (turn % 15 === 0 && !isGroup) used = await monthOf(api, id);
          const own = live.tenants.find((/** @type {any} */ one) => one.id === id);
          const row = rowOf(id, record(), own, used, null);
          const unit = used?.currency ? ` ${used.currency}` : "";
          columns.forEach(({ name, text }, at) => put(values[at], text(row) + (name === "spent" ? unit : "")));
        } catch {
          // what was told last stays; the rest of the page says what is wrong
        }
      }
      await rest(POLL_MS);
    }
  };
  follow();
  return list;
}

// The days of this month, as one.
/** @param {import("../api.js").Api} api @param {string} id */
async function monthOf(api, id) {
  const since = `${new Date().toISOString().slice(0, 7)}-01`;
  const { usage, currency } = await api.read(`/tenants/${id}/usage?since=${since}&format=json`);
  const all = (/** @type {string} */ name) =>
    usage.reduce((/** @type {number} */ sum, /** @type {any} */ day) => sum + Number(day[name]), 0);
  const names = ["requests", "prompt_tokens", "cached_tokens", "output_tokens", "cost"];
  return { currency, ...Object.fromEntries(names.map((name) => [name, all(name)])) };
}
