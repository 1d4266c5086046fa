// Tenants: what they do, and what may be done about them. `mount(element, api)` returns what
// takes it away.

import { field, form, grave, make } from "../dom.js";
import { adaptersOf } from "./adapters.js";
import { auditOf } from "./audit.js";
import { LiveTable } from "./live.js";
import { promptsOf } from "./prompts.js";
import { recordForm } from "./record.js";
import { keysOf, secretOf, tokensOf } from "./secrets.js";
import { usageOf } from "./usage.js";

const ID = /^@?[a-z0-9-]{1,63}$/;

export function mount(element, api) {
  return new Tenants(element, api);
}

class Tenants {
  constructor(element, api) {
    this.api = api;
    this.element = element;
    this.news = make("p", "news");
    this.news.setAttribute("role", "status");
    this.details = make("div", "details");
    if (!api.seesAll) {
      element.append(this.news, this.details);
      this.open(api.operator.tenant).catch(this.teller);
      return;
    }
    const live = make("div");
    element.append(this.news, live, this.openers(), this.details);
    this.live = new LiveTable(live, api, {
      open: (id) => this.open(id).catch(this.teller),
      tell: (error) => this.tell(error),
    });
  }

  close() {
    this.live?.close();
    this.plot?.close();
    this.element.replaceChildren();
  }

  tell(error) { this.news.textContent = error === null ? "" : error.message; }

  openers() {
    const openers = make("div", "openers");
    openers.append(
      form("Open", [field("Tenant, or @ and a group", "id", { required: true })], ({ id }) => this.open(id.trim())),
      form("Create the tenant", [field("New tenant's id", "id", { required: true })], async ({ id }, made) => {
        const { api_key: key } = await this.api.send("POST", "/tenants", { id });
        made.reset();
        await this.changed(id, key);
      }),
      form("Create the group", [field("New share group's id", "id", { required: true })], async ({ id }, made) => {
        await this.api.send("POST", "/groups", { id });
        made.reset();
        await this.open(`@${id}`);
      }),
      form("Show the audit", [], () => this.show("Of all", null, [
        ["Audit", () => auditOf(this.api, null, this.teller)],
      ])),
      form("Show admin tokens", [], () => this.openTokens()),
    );
    return openers;
  }

  openTokens(token) {
    const made = token ? secretOf("admin token", token) : null;
    return this.show("For operators", made, [
      ["Admin tokens", () => tokensOf(this.api, (other) => this.openTokens(other), this.teller)],
    ]);
  }

  get teller() { return (error) => this.tell(error); }

  // After a write: show the tenant anew, and the key that was made, if one was.
  async changed(id, key) {
    this.tell(null);
    await Promise.all([this.open(id, key), id.startsWith("@") ? null : this.live?.turn()]);
  }

  async open(id, key) {
    if (!ID.test(id)) throw new Error("That is no tenant's id, and no @ with a group's.");
    const { api } = this;
    const changed = (other) => this.changed(id, other);
    const made = key ? secretOf("API key", key) : null;
    const audit = ["Audit", () => auditOf(api, id, this.teller)];
    if (id.startsWith("@")) {
      const group = `/groups/${id.slice(1)}`;
      const { members } = await api.read(`${group}/members`);
      await this.show(`Share group ${id.slice(1)}`, made, [
        ["Members", () => [make("p", "", members.join(", ") || "None: a tenant's record names its group.")]],
        ["System prompts", () => promptsOf(api, group, changed, this.teller)],
        ["Adapters", () => adaptersOf(api, group, changed, this.teller)],
        audit,
        ["Delete", () => [grave("Delete the group", () => this.remove(group))]],
      ]);
      return;
    }
    // Who is held to a tenant is told nothing of who changed it, and cannot delete it.
    const forAll = api.seesAll ? [audit, ["Delete", () => [this.deletion(id)]]] : [];
    await this.show(`Tenant ${id}`, made, [
      ["Record", async () => [await recordForm(api, id, changed)]],
      ["API keys", () => keysOf(api, id, changed, this.teller)],
      ["System prompts", () => promptsOf(api, `/tenants/${id}`, changed, this.teller)],
      ["Adapters", () => adaptersOf(api, `/tenants/${id}`, changed, this.teller)],
      ["Usage", async (element) => {
        const plot = await usageOf(api, id, element);
        if (element.isConnected) this.plot = plot;
        else plot?.close();
        return [];
      }],
      ...forAll,
    ]);
  }

  // Sections under their headings, in place of those that were there; behind what was made. What
  // is shown later takes the place of this, as far as it has come.
  async show(title, made, sections) {
    this.plot?.close();
    this.plot = null;
    const heading = make("h2", "", title);
    heading.tabIndex = -1;
    const details = make("div", "details");
    details.append(heading, ...(made ? [made] : []));
    this.details.replaceWith(details);
    this.details = details;
    if (!made) heading.focus();
    for (const [name, contents] of sections) {
      const section = make("details");
      section.open = true;
      section.append(make("summary", "", name));
      details.append(section);
      const shown = await contents(section);
      if (this.details !== details) return;
      section.append(...shown);
    }
  }

  deletion(id) {
    const fields = [field(`Type ${id} to delete it, with all it has`, "name", { required: true })];
    return form("Delete the tenant", fields, async ({ name }) => {
      if (name !== id) throw new Error(`That is not ${id}.`);
      await this.remove(`/tenants/${id}`);
    });
  }

  // Nothing of it is asked meanwhile.
  async remove(path) {
    const { details } = this;
    details.ariaBusy = "true";
    try {
      await this.api.send("DELETE", path);
      details.replaceChildren(make("p", "", "It is deleted."));
      await this.live.turn();
    } catch (error) {
      this.tell(error);
    } finally {
      details.ariaBusy = "false";
    }
  }
}
