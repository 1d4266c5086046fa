// What the list of tenants has of each: a row, from its record, what it does now, and its month.

/**
 * @typedef {object} Row
 * @property {string} id a tenant's, or "@" and a share group's
 * @property {string} name
 * @property {"active" | "suspended" | "group" | ""} status
 * @property {string} group
 * @property {number} streams
 * @property {number} running
 * @property {number} waiting
 * @property {number | null} rate tokens of answers a second
 * @property {number} held
 * @property {number} cached
 * @property {number} leased
 * @property {number} requests this month, as what follows
 * @property {number} prompt
 * @property {number} hit
 * @property {number} tokens
 * @property {number} spent
 * @property {{ streams?: number | string, held?: number, leased?: number, spent?: number }} most
 *
 * @typedef {object} Column
 * @property {keyof Row | "found"} name
 * @property {string} title
 * @property {"" | "Now" | "This month"} part
 * @property {number} width in rem
 * @property {(row: Row) => string} text
 * @property {(row: Row) => string | number | null} by what it is sorted by
 * @property {((rows: Row[]) => string)} [all] of all rows together
 */

/** @param {string} id @param {any} record @param {any} live @param {any} used @param {number | null} rate @returns {Row} */
export function rowOf(id, record, live, used, rate) {
  const limits = record?.limits ?? {};
  const budget = limits.hard_budget_micros ?? limits.soft_budget_micros;
  return {
    id, name: record?.name ?? "", status: statusOf(id, record), group: record?.share_group ?? "",
    streams: live?.streams ?? 0, running: live?.running ?? 0, waiting: live?.queued ?? 0, rate,
    held: live?.blocks_held ?? 0, cached: live?.blocks_cached ?? 0, leased: live?.blocks_leased ?? 0,
    requests: used?.requests ?? 0, prompt: used?.prompt_tokens ?? 0, hit: used?.cached_tokens ?? 0,
    tokens: used ? used.prompt_tokens + used.output_tokens : 0, spent: Number(used?.cost ?? 0),
    most: {
      streams: limits.concurrent_streams, held: limits.blocks, leased: limits.leased_blocks,
      spent: budget && budget / 1e6,
    },
  };
}

/** @param {string} id @param {any} record @returns {Row["status"]} */
function statusOf(id, record) {
  if (id.startsWith("@")) return "group";
  if (record === undefined) return "";
  return record.status === "disabled" ? "suspended" : "active";
}

/** @param {Row} row */
export function isActive({ streams, running, waiting }) { return streams + running + waiting > 0; }

/** @type {Column[]} */
export const COLUMNS = [
  { name: "id", title: "Tenant", part: "", width: 9.2, text: ({ id }) => id, by: ({ id }) => id, all: () => "Total" },
  { ...text("name", "Name", 8.4), text: ({ id, name }) => (id.endsWith(name) ? "" : name) },
  text("status", "Status", 6.4),
  text("group", "Group", 5.2),
  number("streams", "Streams", "Now", 5.2),
  number("running", "Running", "Now", 5.2),
  number("waiting", "Waiting", "Now", 5.2),
  {
    ...number("rate", "Tokens/s", "Now", 5.4),
    text: ({ rate }) => (rate === null ? "–" : rate.toFixed(1)),
    all: (rows) => sum(rows, ({ rate }) => rate ?? 0).toFixed(1),
  },
  number("held", "Held", "Now", 5),
  number("cached", "Cached", "Now", 4.8),
  number("leased", "Leased", "Now", 4.8),
  {
    name: "found", title: "Found", part: "This month", width: 4.6, text: (row) => percent(row),
    by: ({ hit, prompt }) => (prompt ? hit / prompt : null),
    all: (rows) => percent({ hit: sum(rows, ({ hit }) => hit), prompt: sum(rows, ({ prompt }) => prompt) }),
  },
  number("requests", "Requests", "This month", 5.8),
  number("tokens", "Tokens", "This month", 5.2),
  {
    ...number("spent", "Spent", "This month", 7),
    text: ({ spent, most }) => of(money(spent), most.spent && money(most.spent)),
    all: (rows) => money(sum(rows, ({ spent }) => spent)),
  },
];

/** @param {"name" | "status" | "group"} name @param {string} title @param {number} width @returns {Column} */
function text(name, title, width) {
  return { name, title, part: "", width, text: (row) => row[name], by: (row) => row[name] || null };
}

/**
 * @param {"streams" | "running" | "waiting" | "rate" | "held" | "cached" | "leased" | "requests" | "tokens" | "spent"} name
 * @param {string} title @param {"Now" | "This month"} part @param {number} width
 * @returns {Column}
 */
function number(name, title, part, width) {
  return {
    name, title, part, width,
    text: (row) => of(count(row[name] ?? 0), /** @type {any} */ (row.most)[name]),
    by: (row) => row[name],
    all: (rows) => count(sum(rows, (row) => row[name] ?? 0)),
  };
}

/** @param {Row[]} rows @param {(row: Row) => number} value */
function sum(rows, value) { return rows.reduce((all, row) => all + value(row), 0); }

/** @param {string} value @param {number | string | null | undefined} most */
function of(value, most) { return most && most !== "unlimited" ? `${value} of ${most}` : value; }

// Made once: a list that is scrolled says hundreds of numbers a frame.
const WHOLE = new Intl.NumberFormat("en");
const MUCH = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const MONEY = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

/** @param {number} value */
export function count(value) { return (value >= 1e6 ? MUCH : WHOLE).format(value); }

/** @param {number} value */
function money(value) { return MONEY.format(value); }

/** @param {{ hit: number, prompt: number }} row */
function percent({ hit, prompt }) { return prompt ? `${((100 * hit) / prompt).toFixed(0)} %` : "–"; }

/**
 * @typedef {object} Choice what is shown of the list, and in which order
 * @property {string} search
 * @property {string} status
 * @property {string} group
 * @property {boolean} isActive
 * @property {string | null} sort a column's name; null has the active ones first
 * @property {boolean} isDown
 */

/** @param {Row[]} rows @param {Choice} choice */
export function chosen(rows, { search, status, group, isActive: onlyActive }) {
  const sought = search.trim().toLowerCase();
  return rows.filter((row) => (!onlyActive || isActive(row))
    && (!status || row.status === status)
    && (!group || row.group === group || row.id === `@${group}`)
    && (!sought || row.id.includes(sought) || row.name.toLowerCase().includes(sought)));
}

// What is not known comes last, whichever way; equal ones by their ids.
/** @param {Row[]} rows @param {Choice} choice */
export function sorted(rows, { sort, isDown }) {
  const column = COLUMNS.find(({ name }) => name === sort);
  const by = column?.by ?? activity;
  const sign = column === undefined || isDown ? -1 : 1;
  const keyed = rows.map((row) => ({ row, key: by(row) }));
  keyed.sort((one, other) => {
    if (one.key === null || other.key === null) {
      if (one.key !== other.key) return one.key === null ? 1 : -1;
    } else if (one.key !== other.key) {
      return one.key < other.key ? -sign : sign;
    }
    return one.row.id < other.row.id ? -1 : 1;
  });
  return keyed.map(({ row }) => row);
}

// What runs counts most; blocks in memory tell who was there a moment ago.
/** @param {Row} row */
function activity(row) {
  if (isActive(row)) return 2 + row.streams + row.running + row.waiting;
  return row.held + row.cached + row.leased > 0 ? 1 : 0;
}
