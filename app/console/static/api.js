// The service as this page may ask it: with an API key or an admin token that this tab alone keeps.

const TOKEN = "partywall.token";
const CHAT_KEY = "partywall.chat-key";
const PAGE = 1000; // tenants, or prompts of one
const API_KEY = /^pw_[0-9a-f]{16}\./;
const WHOLE_KEY = /^pw_[0-9a-f]{16}\.[\w-]+$/;

/**
 * @typedef {typeof api} Api
 * @typedef {{ name: string, role: string, tenant: string | null }} Operator
 * @typedef {{ field: string, detail: string }} Complaint
 */

/** @param {string} text */
export const isKey = (text) => WHOLE_KEY.test(text);

export class Refused extends Error {
  /** @param {number} status @param {string} detail @param {Complaint[]} complaints */
  constructor(status, detail, complaints = []) {
    super(detail);
    this.status = status;
    this.complaints = complaints;
  }
}

export const api = {
  /** @returns {string | null} */
  get token() { return sessionStorage.getItem(TOKEN); },
  set token(value) { keep(TOKEN, value); },
  get isOperator() { return !API_KEY.test(this.token ?? ""); },

  // The operator who is signed in: their name, their role, and the tenant they are held to, if any.
  operator: /** @type {Operator | null} */ (null),
  get seesAll() { return this.isOperator && this.operator?.tenant === null; },

  // The key to chat with: the one that was signed in with, or one that an operator has chosen.
  /** @returns {string | null} */
  get chatKey() { return this.isOperator ? sessionStorage.getItem(CHAT_KEY) : this.token; },
  set chatKey(value) { keep(CHAT_KEY, value); },

  // Where a chat's socket is, and what it offers.
  get socket() {
    const address = new URL(this.isOperator ? "responses" : "../v1/responses", location.href);
    address.protocol = address.protocol.replace("http", "ws");
    const protocols = ["partywall.v1", `partywall.key.${this.chatKey}`];
    if (this.isOperator) protocols.push(`partywall.operator.${base64url(new TextEncoder().encode(this.token ?? ""))}`);
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
  /** @returns {Promise<string[]>} */
  async tenants() {
    if (this.operator?.tenant) return [this.operator.tenant];
    const ids = [];
    for (/** @type {string | null} */ let after = ""; after !== null;) {
      const page = await this.read(`/tenants?limit=${PAGE}${after && `&after=${after}`}`);
      ids.push(...page.tenants.map(idOf));
      after = page.next;
    }
    return ids;
  },

  // The tenant whose key chats are asked with. Throws Refused where the key does not hold.
  /** @returns {Promise<string>} */
  async whose() { return (await (await this.asChat("me")).json()).tenant; },

  // The registered prompts that a chat may begin with.
  /** @returns {Promise<{ id: string, variables: string[] }[]>} */
  async prompts() { return (await this.asTenant("/prompts?limit=100")).data; },

  // What a chat may call the model: the one served first, then with adapters of its tenant.
  /** @returns {Promise<import("./chat/welcome.js").Model[]>} */
  async models() { return (await this.asTenant("/models")).data; },

  // A stored response. Throws Refused.
  /** @param {string} id */
  response(id) { return this.asTenant(`/responses/${id}`); },

  // Have a stored response forgotten. Throws Refused.
  /** @param {string} id */
  async forget(id) { await this.asChat(`${this.ofTenant}/responses/${id}`, { method: "DELETE" }); },

  // What tenants are told by a GET below /v1, as JSON.
  /** @param {string} path */
  async asTenant(path) { return (await this.asChat(`${this.ofTenant}${path}`)).json(); },

  // Where tenants' paths lie: operators find those that a chat needs beside the console.
  get ofTenant() { return this.isOperator ? "." : "../v1"; },

  // Ask with the chat's key; operators show their own token beside it.
  /** @param {string} address @param {RequestInit} [options] */
  asChat(address, options) {
    /** @type {Record<string, string>} */
    const headers = { authorization: `Bearer ${this.chatKey}` };
    if (this.isOperator) headers["x-partywall-operator"] = this.token ?? "";
    return this.fetched(address, { ...options, headers });
  },

  // What is told of everybody, in Prometheus' text format. Throws Refused.
  /** @param {AbortSignal} [signal] */
  async metrics(signal) { return (await this.fetched("../metrics", { signal })).text(); },

  // The answer to a GET below /admin, which lies beside the console. Throws Refused.
  /** @param {string} path @param {AbortSignal} [signal] */
  get(path, signal) { return this.fetched(`../admin${path}`, { signal }); },

  // What is there, as JSON.
  /** @param {string} path @param {AbortSignal} [signal] */
  async read(path, signal) { return (await this.get(path, signal)).json(); },

  // Write; the answer as JSON, null where there is none. Throws Refused.
  /** @param {string} method @param {string} path @param {unknown} [body] @param {Record<string, string>} [headers] */
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
  /** @param {string} path @param {Record<string, Blob>} files */
  async upload(path, files) {
    const body = new FormData();
    for (const [name, file] of Object.entries(files)) body.append(name, file);
    return (await this.fetched(`../admin${path}`, { method: "PUT", body })).json();
  },

  /** @param {string} address @param {RequestInit & { headers?: Record<string, string> }} [options] */
  async fetched(address, { headers = {}, ...options } = {}) {
    const signed = { authorization: `Bearer ${this.token}`, ...headers };
    return accepted(await fetch(address, { headers: signed, cache: "no-store", ...options }));
  },
};

/** @param {{ id: string }} one */
const idOf = ({ id }) => id;

/** @param {string} name @param {string | null} value */
function keep(name, value) {
  if (value === null) sessionStorage.removeItem(name);
  else sessionStorage.setItem(name, value);
}

// As a subprotocol, or a part of a URL, may be written.
/** @param {Uint8Array} bytes */
export function base64url(bytes) {
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** @param {Response} answer */
async function accepted(answer) {
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  /** @type {Complaint[]} */
  const complaints = problem.errors ?? [];
  const said = complaints.map((one) => `${one.field}: ${one.detail}`).join("; ");
  const detail = said || problem.detail || problem.error?.message;
  throw new Refused(answer.status, detail || answer.statusText, complaints);
}
