// The table of tenants and what each is doing, told every two seconds while the page is seen.

import { button, put, rest, row, table } from "../dom.js";
import { Span, parsed, total } from "../load/metrics.js";

const POLL_MS = 2000;
const MONEY_MS = 60_000;
const PAGE = 50;
const COLUMNS = [
  "Tenant", "Status", "Streams", "Running", "Waiting", "Tokens/s", "Found", "Blocks held",
  "Cached", "Leased", "Served", "This month",
];

export class LiveTable {
  // `open(id)` is called for a tenant, or "@" and a group, that is chosen.
  constructor(element, api, { open, tell }) {
    Object.assign(this, { api, open, tell });
    this.rows = new Map(); // by id: the cells
    this.page = []; // tenants of this page
    this.money = new Map();
    const { region, body } = table("Tenants, live", COLUMNS);
    this.body = body;
    this.next = button("Next page", () => this.turn(this.after));
    element.append(region, button("First page", () => this.turn(null)), " ", this.next);
    this.ending = new AbortController();
    this.turn(null);
    this.poll();
  }

  close() { this.ending.abort(); }

  // Show the page of tenants behind an id, or the same one anew.
  async turn(after = this.shown) {
    this.shown = after;
    this.isWhole = false;
    try {
      const behind = after === null ? "" : `&after=${after}`;
      const { tenants, next } = await this.api.read(`/tenants?limit=${PAGE}${behind}`);
      Object.assign(this, { page: tenants, after: next });
      this.next.disabled = next === null;
      await this.look();
      await this.count();
      this.isWhole = true;
    } catch (error) {
      this.tell(error);
    }
  }

  async poll() {
    const { signal } = this.ending;
    for (let since = 0; !signal.aborted; since += POLL_MS) {
      await rest(POLL_MS);
      if (document.hidden || signal.aborted) continue;
      try {
        if (!this.isWhole) {
          await this.turn();
          continue;
        }
        await this.look();
        if (since % MONEY_MS === 0) await this.count();
        this.tell(null);
      } catch (error) {
        if (!signal.aborted) this.tell(error);
      }
    }
  }

  async look() {
    const { signal } = this.ending;
    const [live, text] = await Promise.all([this.api.read("/live", signal), this.api.metrics(signal)]);
    const samples = parsed(text);
    const now = performance.now() / 1000;
    const span = this.last && new Span(this.last.samples, samples, now - this.last.now);
    this.last = { samples, now };
    const known = new Map(live.tenants.map((one) => [one.id, one]));
    const records = new Map(this.page.map((one) => [one.id, one]));
    const ids = [...new Set([...known.keys(), ...records.keys()])].sort();
    for (const id of ids) this.show(id, this.told(id, records.get(id), known.get(id), span));
    for (const [id, cells] of this.rows) {
      if (ids.includes(id)) continue;
      cells[0].parentNode.remove();
      this.rows.delete(id);
    }
    this.sort(ids);
  }

  // What was spent this month, where anything costs.
  async count() {
    const { currency } = await this.api.read("/prices");
    if (currency === null) return;
    const since = `${new Date().toISOString().slice(0, 7)}-01`;
    await Promise.all(this.page.map(async ({ id, limits }) => {
      const { usage } = await this.api.read(`/tenants/${id}/usage?since=${since}&format=json`);
      const spent = usage.reduce((sum, { cost }) => sum + Number(cost), 0);
      const most = limits.hard_budget_micros ?? limits.soft_budget_micros;
      this.money.set(id, `${of(spent.toFixed(2), most && (most / 1e6).toFixed(2))} ${currency}`);
    }));
  }

  told(id, record, live, span) {
    const rate = span?.rate("generation_tokens_total", { tenant: id });
    const asked = total(this.last.samples, "prompt_tokens_total", { tenant: id });
    const found = total(this.last.samples, "prompt_tokens_cached_total", { tenant: id });
    const limits = record?.limits ?? {};
    return [
      record?.status ?? (id.startsWith("@") ? "group" : ""),
      of(live?.streams ?? 0, limits.concurrent_streams),
      live?.running ?? 0,
      live?.queued ?? 0,
      rate === null || rate === undefined ? "–" : rate.toFixed(1),
      asked ? `${((100 * found) / asked).toFixed(0)} %` : "–",
      of(live?.blocks_held ?? 0, limits.blocks),
      live?.blocks_cached ?? 0,
      of(live?.blocks_leased ?? 0, limits.leased_blocks),
      Math.round(live?.served ?? 0).toLocaleString("en"),
      this.money.get(id) ?? "–",
    ].map(String);
  }

  show(id, texts) {
    if (!this.rows.has(id)) {
      const made = row(this.body, [button(id, () => this.open(id)), ...texts]);
      this.rows.set(id, [...made.cells]);
      return;
    }
    const [, ...cells] = this.rows.get(id);
    cells.forEach((cell, index) => put(cell, texts[index]));
  }

  // In the order of their ids; rows that stay are not moved, and keep the focus.
  sort(ids) {
    ids.forEach((id, index) => {
      const element = this.rows.get(id)[0].parentNode;
      const there = this.body.rows[index];
      if (there !== element) this.body.insertBefore(element, there);
    });
  }
}

function of(value, most) { return most ? `${value} of ${most}` : String(value); }
