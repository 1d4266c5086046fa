// The page of a tenant or a share group: what may be done with it, what it does, and its tabs.

import { button, field, make } from "../dom.js";
import { toast } from "../toast.js";
import { adaptersOf } from "./adapters.js";
import { ask } from "./asking.js";
import { auditOf } from "./audit.js";
import { askForKey, keysOf } from "./keys.js";
import { nowOf } from "./now.js";
import { alerting, emptiness, link, load, telling } from "./panel.js";
import { promptsOf } from "./prompts.js";
import { recordOf } from "./record.js";
import { secretOf } from "./secret.js";
import { usageOf } from "./usage.js";

const OF_TENANT = { record: "Record", keys: "API keys", prompts: "System prompts", adapters: "Adapters", usage: "Usage", audit: "Audit" };
const OF_GROUP = { members: "Members", prompts: "System prompts", adapters: "Adapters", audit: "Audit" };
const KEY_HINT = "Give it to the client, which sends it as its API key: OpenAI's and Anthropic's take it, with this service's address as their base URL.";

export class Page {
  /** @param {HTMLElement} element @param {import("../api.js").Api} api @param {string} id */
  constructor(element, api, id) {
    this.element = element;
    this.api = api;
    this.id = id;
    this.isGroup = id.startsWith("@");
    this.path = this.isGroup ? `/groups/${id.slice(1)}` : `/tenants/${id}`;
    this.record = /** @type {any} */ (null);
    this.tab = /** @type {string | null} */ (null);
    this.shown = /** @type {string[]} */ ([]);
    this.opened = /** @type {import("./panel.js").Tab} */ ({});
    this.owner = {
      api, id, path: this.path, address: `#tenants/${id}`,
      reveal: (/** @type {string} */ what, /** @type {string} */ secret) => this.reveal(what, secret),
      changed: () => this.look(),
    };
    this.told = alerting();
    this.title = make("h2", "", id);
    this.title.tabIndex = -1;
    this.about = make("p", "about");
    this.hands = make("div", "tools");
    this.news = make("div");
    this.now = make("div");
    this.links = make("nav", "tabs");
    this.links.ariaLabel = `Of ${id}`;
    this.panel = make("section", "panel");
    element.replaceChildren(...this.parts());
    this.look();
  }

  parts() {
    const bar = make("div", "across");
    const names = make("div");
    names.append(this.title, this.about);
    bar.append(names, this.hands);
    const back = this.api.seesAll ? [link("‹ Tenants", "#tenants")] : [];
    return [...back, bar, this.told, this.news, this.now, this.links, this.panel];
  }

  // Who is held to a tenant is told nothing of who changed it.
  get tabs() {
    const { audit, ...others } = this.isGroup ? OF_GROUP : OF_TENANT;
    return Object.entries(this.api.seesAll ? { ...others, audit } : others);
  }

  focus() { this.title.focus(); }

  close() {
    this.opened.close?.();
    this.element.replaceChildren();
  }

  // The record, of which the head tells.
  async look() {
    await telling(this.told, async () => {
      this.record = await this.api.read(this.path);
      const { name, status, share_group: group } = this.record;
      this.about.replaceChildren();
      if (name !== this.id.replace("@", "")) this.about.append(`${name} `);
      if (this.isGroup) this.about.append("Share group");
      else this.about.append(make("span", `badge ${status}`, status === "disabled" ? "suspended" : status));
      if (group && this.api.seesAll) this.about.append(" in ", link(group, `#tenants/@${group}`));
      else if (group) this.about.append(` in ${group}`);
      this.offer();
      if (this.api.seesAll && this.now.childElementCount === 0) {
        this.now.append(nowOf(this.api, this.id, () => this.record));
      }
    })();
  }

  offer() {
    const { api, id } = this;
    const hands = [];
    if (!this.isGroup) {
      hands.push(button("New key", () => askForKey(this.element, this.owner, () => this.go("keys"))));
    }
    if (api.seesAll) {
      if (!this.isGroup) {
        const isActive = this.record.status === "active";
        hands.push(button(isActive ? "Suspend" : "Resume", telling(this.told, () => this.suspend(isActive))));
      }
      const remove = button("Delete", () => this.remove());
      remove.classList.add("grave");
      hands.push(remove);
      if (!this.isGroup) hands.push(link("Cells and requests", `#wall/${id}`));
    }
    // What had the focus has it still.
    const at = [...this.hands.children].findIndex((one) => one === document.activeElement);
    this.hands.replaceChildren(...hands);
    hands[at]?.focus();
  }

  /** @param {boolean} isSuspended */
  async suspend(isSuspended) {
    await this.api.send("PATCH", this.path, { status: isSuspended ? "disabled" : "active" });
    toast(isSuspended ? `${this.id} is suspended: its requests are refused.` : `${this.id} is served again.`);
    await this.look();
    if (this.tab === "record") this.show(["record"], true);
  }

  remove() {
    const { id } = this;
    const what = {
      title: `Delete ${id}`, action: this.isGroup ? "Delete the group" : "Delete the tenant",
      fields: [field(`Type ${id} to delete it, with all it has`, "name", { required: true })],
      hint: this.isGroup ? "It has to have no members." : "Its keys end at once, and nothing of it can be had back.",
    };
    ask(this.element, what, async ({ name }) => {
      if (name !== id) throw new Error(`That is not ${id}.`);
      this.tab = null;
      this.opened.close?.();
      this.panel.replaceChildren(); // nothing of it is asked meanwhile
      try {
        await this.api.send("DELETE", this.path);
      } catch (error) {
        this.show(this.shown, true);
        throw error;
      }
      toast(`${id} is deleted.`);
      location.hash = "#tenants";
    }).classList.add("grave");
  }

  /** @param {string} what @param {string} secret */
  reveal(what, secret) {
    const chat = button("Chat with it", () => {
      this.api.chatKey = secret;
      location.hash = "#chat";
    });
    this.news.replaceChildren(secretOf(what, secret, KEY_HINT, chat));
  }

  /** @param {string} tab */
  go(tab) {
    const address = `${this.owner.address}/${tab}`;
    if (location.hash === address) this.show([tab], true);
    else location.hash = address;
  }

  // Shows the tab that a path names, else the first.
  /** @param {string[]} path */
  show(path, isAnew = false) {
    this.shown = path;
    const names = this.tabs.map(([name]) => name);
    const tab = names.includes(path[0]) ? path[0] : names[0];
    const rest = path[0] === tab ? path.slice(1) : [];
    this.links.replaceChildren(...this.tabs.map(([name, title]) => {
      const element = link(title, `${this.owner.address}/${name}`);
      if (name === tab) element.setAttribute("aria-current", "page");
      return element;
    }));
    if (tab === this.tab && !isAnew) {
      this.opened.visit?.(rest);
      return;
    }
    this.opened.close?.();
    this.tab = tab;
    const panel = make("section", "panel");
    panel.ariaLabel = `${Object.fromEntries(this.tabs)[tab]} of ${this.id}`;
    this.panel.replaceWith(panel);
    this.panel = panel;
    this.opened = this.open(tab, panel, rest) ?? {};
  }

  /** @param {string} tab @param {HTMLElement} place @param {string[]} rest @returns {import("./panel.js").Tab | void} */
  open(tab, place, rest) {
    const { owner } = this;
    if (tab === "record") return recordOf(place, owner);
    if (tab === "keys") return keysOf(place, owner);
    if (tab === "prompts") return promptsOf(place, owner, rest);
    if (tab === "adapters") return adaptersOf(place, owner, rest);
    if (tab === "usage") return usageOf(place, owner);
    if (tab === "members") return void this.members(place);
    return void auditOf(place, this.api, this.id);
  }

  /** @param {HTMLElement} place */
  members(place) {
    return load(place, "members", async () => {
      const { members } = await this.api.read(`${this.path}/members`);
      if (members.length === 0) return [emptiness("No members", "A tenant joins by its record, which names its share group.")];
      const list = make("ul", "members");
      for (const id of members) {
        const item = make("li");
        item.append(link(id, `#tenants/${id}`));
        list.append(item);
      }
      return [list];
    });
  }
}
