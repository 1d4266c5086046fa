// The admin API, asked with a token that this tab alone keeps.

const TOKEN = "partywall.admin-token";

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export const api = {
  get token() { return sessionStorage.getItem(TOKEN); },
  set token(value) {
    if (value === null) sessionStorage.removeItem(TOKEN);
    else sessionStorage.setItem(TOKEN, value);
  },

  // The answer to a GET below /admin, which lies beside the console. Throws Refused.
  async get(path, signal) {
    const headers = { authorization: `Bearer ${this.token}` };
    const answer = await fetch(`../admin${path}`, { headers, signal, cache: "no-store" });
    if (answer.ok) return answer;
    const problem = await answer.json().catch(() => ({}));
    throw new Refused(answer.status, problem.detail ?? answer.statusText);
  },
};
