// A tenant's API keys, and admin tokens that are kept in the store. A new one is shown once.

import { button, field, form, grave, make, row, table, tried } from "../dom.js";

const DAY_SECONDS = 24 * 3600;

export async function keysOf(api, id, changed, tell) {
  const path = `/tenants/${id}/keys`;
  const { keys } = await api.read(path);
  const { region, body } = table("API keys", ["Key", "Id", "Made", "Ends", "Actions"]);
  const doing = (method, suffix, payload) => tried(tell, async () => {
    const made = await api.send(method, path + suffix, payload);
    await changed(made?.api_key);
  });
  for (const key of keys) {
    const hands = key.live && !key.replaced_by
      ? [
        button("Rotate", doing("POST", `/${key.id}/rotate`, { overlap_seconds: DAY_SECONDS })),
        grave("Revoke", doing("DELETE", `/${key.id}`)),
      ]
      : "";
    row(body, [key.name, key.id, key.created_at, endOf(key), hands]);
  }
  const fields = [field("What it is for", "name", { required: true }), lifetime()];
  const adding = form("Make a key", fields, async ({ name, days }) => {
    const made = await api.send("POST", path, { name, expires_in_seconds: secondsOf(days) });
    await changed(made.api_key);
  });
  const hint = make("p", "hint", "A key that is rotated goes on for a day beside the new one.");
  return [region, hint, adding];
}

export async function tokensOf(api, changed, tell) {
  const { tokens } = await api.read("/tokens");
  const columns = ["For", "May", "Tenant", "Made", "Ends", "Actions"];
  const { region, body } = table("Admin tokens", columns);
  for (const token of tokens) {
    const revoke = tried(tell, async () => {
      await api.send("DELETE", `/tokens/${token.id}`);
      await changed();
    });
    row(body, [
      token.name, token.role === "read" ? "read" : "do all", token.tenant ?? "all",
      token.created_at, endOf(token), token.live ? grave("Revoke", revoke) : "",
    ]);
  }
  const fields = [
    field("Who or what it is for", "name", { required: true }),
    field("Role", "role", { choices: ["read", "admin"] }),
    field("Tenant that it is held to", "tenant", { placeholder: "all" }),
    lifetime(),
  ];
  const adding = form("Make a token", fields, async ({ name, role, tenant, days }) => {
    const held = { tenant: tenant.trim() || null, expires_in_seconds: secondsOf(days) };
    const made = await api.send("POST", "/tokens", { name, role, ...held });
    await changed(made.admin_token);
  });
  return [region, make("p", "hint", "Those of the first start and of a file are not among them."), adding];
}

// A secret that is shown this once, chosen so that it can be copied.
export function secretOf(what, secret) {
  const shown = field(`The new ${what}, shown once`, "secret", { value: secret, readOnly: true });
  requestAnimationFrame(() => shown.firstElementChild.select());
  return shown;
}

function lifetime() {
  return field("Days that it lasts", "days", { type: "number", min: 1, placeholder: "for ever" });
}

function secondsOf(days) { return days ? Number(days) * DAY_SECONDS : null; }

function endOf(one) { return one.live ? (one.expires_at ?? "never") : "ended"; }
