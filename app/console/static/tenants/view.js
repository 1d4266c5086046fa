// Tenants: the list of all (`#tenants`), a page for each (`#tenants/acme/keys`, groups as
// `#tenants/@law`), the audit of all and admin tokens (`#tenants/*/audit`, `#tenants/*/tokens`).

import { button, field, make } from "../dom.js";
import { toast } from "../toast.js";
import { ask } from "./asking.js";
import { auditOf } from "./audit.js";
import { List } from "./all/list.js";
import { Page } from "./page.js";
import { alerting, link, primary } from "./panel.js";
import { tokens } from "./tokens.js";

const ID = /^@?[a-z0-9-]{1,63}$/;
const OF_ALL = "*"; // no tenant can be called so

/** @param {HTMLElement} element @param {import("../api.js").Api} api @param {string[]} path */
export function mount(element, api, path) {
  const tenants = new Tenants(element, api);
  tenants.visit(path);
  return tenants;
}

class Tenants {
  /** @param {HTMLElement} element @param {import("../api.js").Api} api */
  constructor(element, api) {
    this.element = element;
    this.api = api;
    this.list = /** @type {List | null} */ (null);
    this.page = /** @type {Page | null} */ (null);
    this.fresh = /** @type {{ id: string, key: string } | null} */ (null); // whose first key was just made
    this.listing = make("div");
    this.place = make("div", "tenant");
    element.append(this.listing, this.place);
  }

  close() {
    this.list?.close();
    this.page?.close();
    this.element.replaceChildren();
  }

  /** @param {string[]} path */
  visit([id, ...rest]) {
    const { api } = this;
    this.element.querySelector("dialog")?.close(); // of what was left
    if (!api.seesAll) {
      const own = /** @type {string} */ (api.operator?.tenant);
      this.open(own, id === own ? rest : []);
      return;
    }
    this.listing.hidden = id !== undefined;
    this.place.hidden = id === undefined;
    if (id === undefined) this.openList();
    else if (id === OF_ALL) this.openAll(rest[0]);
    else if (ID.test(id)) this.open(id, rest);
    else this.leave("That is no tenant's id, and no @ with a group's.");
  }

  openList() {
    this.page?.close();
    this.page = null;
    if (this.list === null) {
      this.list = new List(this.listing, this.api, [
        link("Audit", `#tenants/${OF_ALL}/audit`), link("Admin tokens", `#tenants/${OF_ALL}/tokens`),
        button("New group", () => this.newGroup()), primary("New tenant", () => this.newTenant()),
      ]);
    } else {
      this.list.again();
    }
  }

  // The page that is open is gone, and what stands there instead is said.
  /** @param {string} [why] */
  leave(why) {
    this.page?.close();
    this.page = null;
    this.place.replaceChildren(link("‹ Tenants", "#tenants"));
    if (why === undefined) return;
    const told = alerting();
    told.textContent = why;
    this.place.append(told);
  }

  /** @param {string} what */
  openAll(what) {
    this.leave();
    const title = make("h2", "", what === "tokens" ? "Admin tokens" : "Audit of all");
    title.tabIndex = -1;
    const panel = make("section", "panel");
    panel.ariaLabel = `${title.textContent}, all`;
    this.place.append(title, panel);
    title.focus();
    if (what === "tokens") tokens(panel, this.api);
    else auditOf(panel, this.api, null);
  }

  /** @param {string} id @param {string[]} path */
  open(id, path) {
    const isAnother = this.page?.id !== id;
    if (isAnother) {
      this.page?.close();
      this.page = new Page(this.place, this.api, id);
    }
    this.page?.show(path);
    if (!isAnother) return;
    if (this.fresh?.id === id) this.page?.reveal("API key", this.fresh.key);
    else this.page?.focus();
    this.fresh = null;
  }

  newTenant() {
    const fields = [
      idField(),
      field("Name, for people", "name", { placeholder: "as the id" }),
      field("Share group", "share_group", { placeholder: "none" }),
    ];
    const hint = "A customer with an API key, limits and a cache of its own. The key is shown next, once.";
    ask(this.element, { title: "New tenant", action: "Create the tenant", fields, hint }, async (values) => {
      const { api_key: key } = await this.api.send("POST", "/tenants", given(values));
      this.fresh = { id: values.id, key };
      toast(`The tenant ${values.id} is made.`);
      location.hash = `#tenants/${values.id}/keys`;
    });
  }

  newGroup() {
    const fields = [idField(), field("Name, for people", "name", { placeholder: "as the id" })];
    const hint = "Its members share its prompts and adapters, and nothing else.";
    ask(this.element, { title: "New share group", action: "Create the group", fields, hint }, async (values) => {
      await this.api.send("POST", "/groups", given(values));
      toast(`The share group ${values.id} is made.`);
      location.hash = `#tenants/@${values.id}`;
    });
  }
}

function idField() {
  const what = "Small letters, digits and hyphens";
  return field("Id", "id", { required: true, pattern: "[a-z0-9\\-]{1,63}", title: what, placeholder: what });
}

// What was filled in.
/** @param {Record<string, string>} values */
function given(values) {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value.trim() !== ""));
}
