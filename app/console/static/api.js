// The service as this page may ask it: with an API key or an admin token that this tab alone keeps.

const TOKEN = "partywall.token";
const CHAT_KEY = "partywall.chat-key";
const CHAT_TENANT = "partywall.chat-tenant";
const PAGE = 1000; // tenants, or prompts of one
const API_KEY = /^pw_[0-9a-f]{16}\./;
const WHOLE_KEY = /^pw_[0-9a-f]{16}\.[\w-]+$/;

export const isKey = (text) => WHOLE_KEY.test(text);

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export const api = {
  get token() { return sessionStorage.getItem(TOKEN); },
  set token(value) { keep(TOKEN, value); },
  get isOperator() { return !API_KEY.test(this.token); },

  // The operator who is signed in: their name, their role, and the tenant they are held to, if any.
  operator: null,
  get seesAll() { return this.isOperator && this.operator.tenant === null; },

  // The key to chat with: the one that was signed in with, or one that an operator has chosen.
  get chatKey() { return this.isOperator ? sessionStorage.getItem(CHAT_KEY) : this.token; },
  set chatKey(value) { keep(CHAT_KEY, value); },

  // Whose an operator's key is, as far as it was made here.
  get chatTenant() { return sessionStorage.getItem(CHAT_TENANT); },
  set chatTenant(value) { keep(CHAT_TENANT, value); },

  // Where a chat's socket is, and what it offers.
  get socket() {
    const address = new URL(this.isOperator ? "responses" : "../v1/responses", location.href);
    address.protocol = address.protocol.replace("http", "ws");
    const protocols = ["partywall.v1", `partywall.key.${this.chatKey}`];
    if (this.isOperator) protocols.push(`partywall.operator.${base64url(new TextEncoder().encode(this.token))}`);
    return { address, protocols };
  },

  // Throws Refused unless the token holds, and is one for this port.
  async check() {
    if (!this.isOperator) {
      await this.asTenant("/models");
      return;
    }
    try {
      this.operator = await this.read("/me");
    } catch (error) {
      if (error.status !== 404) throw error;
      throw new Refused(404, "This is no API key, and operators sign in at a port of their own.");
    }
  },

  // The ids of the tenants that an operator may see.
  async tenants() {
    if (!this.seesAll) return [this.operator.tenant];
    const ids = [];
    for (let after = ""; after !== null;) {
      const page = await this.read(`/tenants?limit=${PAGE}${after && `&after=${after}`}`);
      ids.push(...page.tenants.map(({ id }) => id));
      after = page.next;
    }
    return ids;
  },

  // The names of the registered prompts that a chat may begin with; none where it is not known whose.
  async prompts() {
    if (!this.isOperator) return (await this.asTenant("/prompts?limit=100")).data.map(({ id }) => id);
    return this.namesOfChat("prompts");
  },

  // What a chat may call the model: with an adapter of its tenant, too.
  async models() {
    if (!this.isOperator) return (await this.asTenant("/models")).data.map(({ id }) => id);
    return (await this.namesOfChat("adapters")).map((name) => `:${name}`);
  },

  // Of what the chat's tenant and its share group own.
  async namesOfChat(what) {
    const tenant = this.chatTenant;
    if (tenant === null) return [];
    const { share_group: group } = await this.read(`/tenants/${tenant}`);
    const owners = [`/tenants/${tenant}`, ...(group && this.seesAll ? [`/groups/${group}`] : [])];
    const lists = await Promise.all(
      owners.map((owner) => this.read(`${owner}/${what}?limit=${PAGE}`)),
    );
    return [...new Set(lists.flatMap((list) => list[what].map(({ name }) => name)))];
  },

  // What tenants are told by a GET below /v1, as JSON.
  async asTenant(path) { return (await this.fetched(`../v1${path}`)).json(); },

  // What is told of everybody, in Prometheus' text format. Throws Refused.
  async metrics(signal) { return (await this.fetched("../metrics", { signal })).text(); },

  // The answer to a GET below /admin, which lies beside the console. Throws Refused.
  get(path, signal) { return this.fetched(`../admin${path}`, { signal }); },

  // What is there, as JSON.
  async read(path, signal) { return (await this.get(path, signal)).json(); },

  // Write; the answer as JSON, null where there is none. Throws Refused.
  async send(method, path, body, headers = {}) {
    const isJson = body !== undefined;
    const answer = await this.fetched(`../admin${path}`, {
      method,
      headers: isJson ? { "content-type": "application/json", ...headers } : headers,
      body: isJson ? JSON.stringify(body) : undefined,
    });
    return answer.status === 204 ? null : answer.json();
  },

  // Put files, in this order, each under its name. Throws Refused.
  async upload(path, files) {
    const body = new FormData();
    for (const [name, file] of Object.entries(files)) body.append(name, file);
    return (await this.fetched(`../admin${path}`, { method: "PUT", body })).json();
  },

  async fetched(address, { headers = {}, ...options } = {}) {
    const signed = { authorization: `Bearer ${this.token}`, ...headers };
    return accepted(await fetch(address, { headers: signed, cache: "no-store", ...options }));
  },
};

function keep(name, value) {
  if (value === null) sessionStorage.removeItem(name);
  else sessionStorage.setItem(name, value);
}

// As a subprotocol, or a part of a URL, may be written.
export function base64url(bytes) {
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

async function accepted(answer) {
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  const complaints = (problem.errors ?? []).map((one) => `${one.field}: ${one.detail}`);
  const detail = complaints.join("; ") || problem.detail || problem.error?.message;
  throw new Refused(answer.status, detail || answer.statusText);
}
