// People sign in at an OpenID provider: the authorization code flow with PKCE (RFC 7636), as a
// public client.

import { base64url } from "./api.js";

const PENDING = "partywall.sign-in"; // what was begun in this tab
const RANDOM_BYTES = 32;

export const isOffered = document.body.dataset.signsIn !== undefined;

const here = () => location.origin + location.pathname;

/**
 * @typedef {{ authorization_endpoint: string, token_endpoint: string, client_id: string }} Provider
 * @returns {Promise<Provider>}
 */
export async function provider() {
  const answer = await fetch("../admin/sign-in", { cache: "no-store" });
  if (!answer.ok) throw new Error("The provider that people sign in at does not answer.");
  return answer.json();
}

// What was begun is not gone on with.
export function forget() { sessionStorage.removeItem(PENDING); }

// Leave for the provider's page.
/** @param {Provider} provider */
export async function begin({ authorization_endpoint: place, client_id: client }) {
  const [verifier, state] = [random(), random()];
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier));
  sessionStorage.setItem(PENDING, JSON.stringify({ verifier, state, view: location.hash }));
  const address = new URL(place);
  const asked = {
    response_type: "code",
    client_id: client,
    redirect_uri: here(),
    scope: "openid email",
    state,
    code_challenge: base64url(new Uint8Array(digest)),
    code_challenge_method: "S256",
  };
  for (const [name, value] of Object.entries(asked)) address.searchParams.set(name, value);
  location.assign(address);
}

// The tokens that a person has come back with, to be tried in turn; none, if nobody has.
/** @returns {Promise<string[]>} */
export async function finish() {
  const told = new URLSearchParams(location.search);
  if (!told.has("state")) return [];
  const pending = JSON.parse(sessionStorage.getItem(PENDING) ?? "{}");
  sessionStorage.removeItem(PENDING);
  history.replaceState(null, "", here() + (pending.view ?? ""));
  if (told.get("state") !== pending.state) throw new Error("This tab did not ask to sign in so.");
  const code = told.get("code");
  if (code === null) throw new Error(told.get("error_description") ?? told.get("error") ?? "No code came.");
  const { token_endpoint: place, client_id: client } = await provider();
  const answer = await fetch(place, {
    method: "POST",
    body: new URLSearchParams({
      grant_type: "authorization_code",
      code,
      redirect_uri: here(),
      client_id: client,
      code_verifier: pending.verifier,
    }),
  });
  const tokens = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(tokens.error_description ?? tokens.error ?? answer.statusText);
  return [tokens.access_token, tokens.id_token].filter((token) => token !== undefined);
}

function random() { return base64url(crypto.getRandomValues(new Uint8Array(RANDOM_BYTES))); }
