// Where an operator chooses whose customer to be: with a key that they have, or a new one for a day.

import { isKey } from "../api.js";
import { fill, tried } from "../dom.js";

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

// Calls `use` once there is a key. What is still to be answered when the form is gone is passed over.
export function askForKey(element, api, use) {
  fill(element, MARKUP);
  const form = element.querySelector("form");
  const part = (name) => element.querySelector(name);
  const tell = ({ message }) => { part(".news").textContent = message; };
  const chosen = (key, tenant) => {
    if (!form.isConnected) return;
    api.chatKey = key;
    api.chatTenant = tenant;
    use();
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const key = part("[name=key]").value.trim();
    if (isKey(key)) chosen(key, null);
    else tell({ message: "That is no API key: one is pw_, an id, a dot and a secret." });
  });
  part("[name=make]").addEventListener("click", tried(tell, async () => {
    const tenant = part("[name=tenant]").value;
    const path = `/tenants/${tenant}/keys`;
    const made = await api.send("POST", path, { name: "console", expires_in_seconds: DAY_SECONDS });
    chosen(made.api_key, tenant);
  }));
  api.tenants().then((tenants) => {
    part("[name=tenant]").replaceChildren(...tenants.map((id) => new Option(id)));
    part("[name=make]").disabled = tenants.length === 0;
  }).catch(tell);
}
