// What sharing is worth (/admin/sharing): numbers for a glance, and tables of whom it serves and costs.

import { COUNT, DURATION, PART, money } from "./said.js";
import { fill, make, part, put, table } from "../dom.js";

/**
 * @typedef {object} Saved
 * @property {number} requests
 * @property {number} prompt_tokens
 * @property {number} found_tokens
 * @property {number | null} hit_rate
 * @property {number} seconds
 * @property {string} worth
 * @property {string} discount
 * @typedef {{name: string | null, now: Saved, today: Saved}} Row
 * @typedef {{tenant: string, by: string, taken_by: string | null, last_minute: number, blocks: number}} Eviction
 * @typedef {object} Told
 * @property {string} since
 * @property {number} now_seconds
 * @property {string | null} currency
 * @property {Row} total
 * @property {Row[]} tenants
 * @property {Row[]} prompts
 * @property {Eviction[] | null} evictions
 * @typedef {{blocks: number, sizes: {blocks: number, found: number}[]}} Curve
 */

export const MOST = 10; // tenants, prompts and evictions that are shown of each alone
const MARKUP = `
<dl class="worth"></dl>
<p class="hint since"></p>
<div class="whose-worth"></div>
<div class="evictions"><h2>Who pushed out whom</h2>
<p class="hint advice"></p></div>`;
const FACTS = ["Found, not computed", "Computing saved", "Money saved", "Hit rate"];
const COLUMNS = ["Tokens found", "Computing saved", "Money saved", "Hit rate", "Hit rate now", "Found a second now"];
/** @type {Record<string, string>} */
const WHY = {
  pressure: "there was no other memory",
  own_quota: "beyond its own quota of leases",
  expired: "its lease had run out",
  deleted: "deleted",
};

// Rows that stay while what they tell changes, so that a link keeps its focus.
class Rows {
  /** @param {string} label @param {string[]} columns */
  constructor(label, columns) {
    const { region, body } = table(label, columns);
    this.region = region;
    this.body = body;
    this.width = columns.length;
  }

  // The first cell of each row is what `heads` makes of it, unless it says the same already.
  /** @param {string[][]} rows @param {(text: string, index: number) => Node} head */
  show(rows, head) {
    while (this.body.rows.length > rows.length) this.body.deleteRow(-1);
    rows.forEach((texts, index) => {
      const row = this.body.rows[index] ?? this.body.insertRow();
      texts.forEach((text, at) => {
        const cell = row.cells[at] ?? row.insertCell();
        if (at > 0) put(cell, text);
        else if (cell.textContent !== text) cell.replaceChildren(head(text, index));
      });
    });
  }
}

export class Sharing {
  /** @param {HTMLElement} element */
  constructor(element) {
    fill(element, MARKUP);
    this.since = part(element, ".since");
    this.facts = FACTS.map((title) => {
      const [outer, value, more] = [make("div"), make("dd", "value", "–"), make("dd", "more")];
      outer.append(make("dt", "", title), value, more);
      part(element, ".worth").append(outer);
      return { value, more };
    });
    this.tenants = new Rows("Saved by tenant", ["Tenant", ...COLUMNS]);
    this.prompts = new Rows("Saved by registered prompt", ["Registered prompt", ...COLUMNS]);
    const whose = part(element, ".whose-worth");
    whose.append(make("h2", "", "By tenant"), this.tenants.region);
    whose.append(make("h2", "", "By registered prompt"), this.prompts.region);
    this.prompts.region.ariaDescription = "Of the prompt's own tokens, without what follows them.";
    this.evictions = new Rows("Evictions", ["Who lost blocks to whom", "Why", "Last minute", "Since the engine's start"]);
    this.advice = part(element, ".advice");
    part(element, ".evictions").append(this.evictions.region);
  }

  /** @param {Told} told @param {Curve} curve */
  show(told, curve) {
    const { now, today } = told.total;
    const [found, seconds, worth, rate] = this.facts;
    const perSecond = (/** @type {number} */ count) => COUNT(count / told.now_seconds);
    put(found.value, COUNT(today.found_tokens));
    put(found.more, `tokens today; ${perSecond(now.found_tokens)} a second now`);
    put(seconds.value, DURATION(today.seconds));
    put(seconds.more, `of the engine's time today; ${DURATION(now.seconds)} in the last ${told.now_seconds} s`);
    put(worth.value, money(today.worth, told.currency));
    put(worth.more, told.currency === null
      ? "no prices are set (--price-file)"
      : `today; ${money(today.discount, told.currency)} of it tenants did not pay; ${money(now.worth, told.currency)} in the last ${told.now_seconds} s`);
    put(rate.value, PART(today.hit_rate));
    put(rate.more, `of prompts' tokens today; ${PART(now.hit_rate)} now`);
    put(this.since, `Today is since ${started(told.since)}; now is the last ${told.now_seconds} seconds. A registered prompt's are its own tokens alone.`);
    this.list(this.tenants, told.tenants, told, (name) => link(`#tenants/${encodeURIComponent(name)}`, name));
    this.list(this.prompts, told.prompts, told, (name) => make("span", "", name));
    this.lost(told.evictions, curve);
  }

  /** @param {Rows} rows @param {Row[]} told @param {Told} all @param {(name: string) => Node} named */
  list(rows, told, all, named) {
    const texts = told.map(({ name, now, today }) => [
      name ?? "all others",
      COUNT(today.found_tokens),
      DURATION(today.seconds),
      money(today.worth, all.currency),
      PART(today.hit_rate),
      PART(now.hit_rate),
      COUNT(now.found_tokens / all.now_seconds),
    ]);
    rows.show(texts, (text, index) => (told[index].name === null ? make("i", "", text) : named(text)));
    rows.region.hidden = told.length === 0;
    const title = /** @type {HTMLElement} */ (rows.region.previousElementSibling);
    title.hidden = rows.region.hidden;
  }

  /** @param {Eviction[] | null} evictions @param {Curve} curve */
  lost(evictions, curve) {
    const some = (evictions ?? []).slice(0, MOST);
    this.evictions.show(some.map((one) => [
      sentence(one), WHY[one.by] ?? one.by, COUNT(one.last_minute), COUNT(one.blocks),
    ]), (text) => make("span", "", text));
    this.evictions.region.hidden = some.length === 0;
    const [minute, all] = [sum(evictions, "last_minute"), sum(evictions, "blocks")];
    const lost = all ? `${COUNT(minute)} blocks in the last minute, ${COUNT(all)} since the engine's start.` : "Nothing was evicted yet.";
    put(this.advice, evictions === null ? "The engine does not answer." : `${lost} ${all ? advice(curve) : ""}`);
  }
}

/** @param {string} href @param {string} text */
function link(href, text) { return Object.assign(make("a", "", text), { href }); }

/** @param {Eviction} one */
function sentence({ tenant, by, taken_by: taker, last_minute: lately, blocks }) {
  const count = `${COUNT(lately || blocks)} ${(lately || blocks) === 1 ? "block" : "blocks"}`;
  if (by === "deleted" || taker === null) return `${count} of ${tenant} were deleted`;
  return taker === tenant ? `${tenant} lost ${count} to requests of its own` : `${tenant} lost ${count} to ${taker}'s requests`;
}

// What would keep more, with what the curve says of more memory.
/** @param {Curve} curve */
function advice({ blocks, sizes }) {
  const found = (/** @type {number} */ size) => sizes.find((point) => point.blocks >= size)?.found;
  const [here, twice] = [found(blocks), found(2 * blocks)];
  const gain = here === undefined || twice === undefined ? 0 : twice - here;
  const pool = gain >= 0.001
    ? `a pool of twice the size would have found ${(100 * gain).toFixed(1)} % more of all blocks that were asked for`
    : "a pool of twice the size would have found no more";
  return `To keep more: pin registered prompts, lease conversations, reserve blocks for a tenant; ${pool}.`;
}

/** @param {Eviction[] | null} evictions @param {"last_minute" | "blocks"} what */
function sum(evictions, what) {
  return (evictions ?? []).reduce((total, one) => total + one[what], 0);
}

/** @param {string} since */
function started(since) {
  const time = since.slice(11, 16);
  return time === "00:00" ? "midnight (UTC)" : `${time} (UTC), when the service was started`;
}
