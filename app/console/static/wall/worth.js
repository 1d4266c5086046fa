// What sharing has saved today, of all or of one tenant, in a line over the wall (/admin/sharing).

import { COUNT, DURATION, money, PART } from "../load/said.js";
import { make, put, rest } from "../dom.js";

const POLL_MS = 5000;
const MOST = 100; // tenants that are told of each alone

export class Worth {
  /** @param {HTMLElement} element @param {import("./view.js").Api} api */
  constructor(element, api) {
    this.element = element;
    this.api = api;
    this.line = make("span");
    /** @type {import("../load/sharing.js").Told | null} */
    this.told = null;
    /** @type {string | undefined} */
    this.tenant = undefined;
    this.ending = new AbortController();
    this.follow();
  }

  close() { this.ending.abort(); }

  // Whose it is about: a tenant's, or all's.
  /** @param {string} [tenant] */
  visit(tenant) {
    this.tenant = tenant;
    this.show();
  }

  async follow() {
    const { signal } = this.ending;
    for (; !signal.aborted; await rest(POLL_MS)) {
      if (document.hidden) continue;
      try {
        this.told = await this.api.read(`/sharing?most=${MOST}`, signal);
        this.show();
      } catch {
        // the wall itself says when the service is away
      }
    }
  }

  show() {
    if (this.told === null) return;
    const { total, tenants, currency } = this.told;
    const { today } = tenants.find(({ name }) => name === this.tenant) ?? (this.tenant ? {} : total);
    this.element.hidden = !today?.prompt_tokens;
    if (!today?.prompt_tokens) return;
    const paid = currency === null ? "" : `, ${money(today.worth, currency)}`;
    put(this.line, `${this.tenant ? `${this.tenant}'s` : "All"} prompts found ${COUNT(today.found_tokens)} of `
      + `${COUNT(today.prompt_tokens)} tokens today (${PART(today.hit_rate)}): ${DURATION(today.seconds)} of computing saved${paid}.`);
    if (!this.line.isConnected) this.element.append(this.line, " ", Object.assign(make("a", "", "More on Load"), { href: "#load" }));
  }
}
