// Admin tokens that are kept in the store: made, listed and revoked.

import { field, form, grave, make, row, table } from "../dom.js";

const DAY_SECONDS = 24 * 3600;

export async function tokensOf(api, changed, tell) {
  const { tokens } = await api.read("/tokens");
  const columns = ["For", "May", "Tenant", "Made", "Ends", "Actions"];
  const { region, body } = table("Admin tokens", columns);
  for (const token of tokens) {
    const revoke = async () => {
      try {
        await api.send("DELETE", `/tokens/${token.id}`);
        await changed();
      } catch (error) {
        tell(error);
      }
    };
    const ends = token.live ? (token.expires_at ?? "never") : "ended";
    row(body, [
      token.name, token.role === "read" ? "read" : "do all", token.tenant ?? "all",
      token.created_at, ends, token.live ? grave("Revoke", revoke) : "",
    ]);
  }
  const fields = [
    field("Who or what it is for", "name", { required: true }),
    field("Role", "role", { choices: ["read", "admin"] }),
    field("Tenant that it is held to", "tenant", { placeholder: "all" }),
    field("Days that it lasts", "days", { type: "number", min: 1, placeholder: "for ever" }),
  ];
  const adding = form("Make a token", fields, async ({ name, role, tenant, days }) => {
    const made = await api.send("POST", "/tokens", {
      name,
      role,
      tenant: tenant.trim() || null,
      expires_in_seconds: days ? Number(days) * DAY_SECONDS : null,
    });
    await changed(made.admin_token);
  });
  return [region, make("p", "hint", "Those of the first start and of a file are not among them."), adding];
}
