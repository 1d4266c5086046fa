// Where an operator chooses whose customer to be: with a key that they have, or a new one for a day.

import { isKey } from "../api.js";
import { fill, part, tried } from "../dom.js";

const MARKUP = `
<form class="fields">
<p>Chats are a tenant's: give one of its API keys, or make one that lasts for a day.</p>
<label>API key <input name="key" type="password" autocomplete="off" required></label>
<button>Use it</button>
<label>Tenant <select name="tenant"></select></label>
<button type="button" name="make">Make a key</button>
<p class="news" role="alert"></p>
</form>`;
const DAY_SECONDS = 24 * 3600;

// Calls `use` once there is a key; `why` it is asked for, if an earlier one does not hold any more. What is still to
// be answered when the form is gone is passed over.
/** @param {HTMLElement} element @param {import("../api.js").Api} api @param {() => void} use @param {string} why */
export function askForKey(element, api, use, why) {
  fill(element, MARKUP);
  const form = part(element, "form");
  const field = (/** @type {string} */ name) => part(element, `[name=${name}]`);
  const tell = (/** @type {{ message: string }} */ { message }) => { part(element, ".news").textContent = message; };
  const chosen = (/** @type {string} */ key) => {
    if (!form.isConnected) return;
    api.chatKey = key;
    use();
  };
  tell({ message: why });
  form.addEventListener("submit", (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const key = field("key").value.trim();
    if (isKey(key)) chosen(key);
    else tell({ message: "That is no API key: one is pw_, an id, a dot and a secret." });
  });
  field("make").addEventListener("click", tried(tell, async () => {
    const tenant = field("tenant").value;
    const path = `/tenants/${tenant}/keys`;
    const made = await api.send("POST", path, { name: "console", expires_in_seconds: DAY_SECONDS });
    chosen(made.api_key);
  }));
  api.tenants().then((tenants) => {
    field("tenant").replaceChildren(...tenants.map((id) => new Option(id)));
    field("make").disabled = tenants.length === 0;
  }).catch(tell);
}
