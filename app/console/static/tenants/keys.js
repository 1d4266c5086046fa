// A tenant's API keys. A new one is shown once, to be copied.

import { button, field, form, grave, make, row, table } from "../dom.js";

const DAY_SECONDS = 24 * 3600;

export async function keysOf(api, id, changed, tell) {
  const path = `/tenants/${id}/keys`;
  const { keys } = await api.read(path);
  const { region, body } = table("API keys", ["Key", "Id", "Made", "Ends", "Actions"]);
  const doing = (method, suffix, payload) => async () => {
    try {
      const made = await api.send(method, path + suffix, payload);
      await changed(made?.api_key);
    } catch (error) {
      tell(error);
    }
  };
  for (const key of keys) {
    const ends = key.live ? (key.expires_at ?? "never") : "ended";
    const hands = key.live && !key.replaced_by
      ? [
        button("Rotate", doing("POST", `/${key.id}/rotate`, { overlap_seconds: DAY_SECONDS })),
        grave("Revoke", doing("DELETE", `/${key.id}`)),
      ]
      : "";
    row(body, [key.name, key.id, key.created_at, ends, hands]);
  }
  const fields = [
    field("What it is for", "name", { required: true }),
    field("Days that it lasts", "days", { type: "number", min: 1, placeholder: "for ever" }),
  ];
  const adding = form("Make a key", fields, async ({ name, days }) => {
    const lifetime = days ? Number(days) * DAY_SECONDS : null;
    const made = await api.send("POST", path, { name, expires_in_seconds: lifetime });
    await changed(made.api_key);
  });
  const hint = make("p", "hint", "A key that is rotated goes on for a day beside the new one.");
  return [region, hint, adding];
}

// A secret that is shown this once, chosen so that it can be copied.
export function secretOf(what, secret) {
  const shown = field(`The new ${what}, shown once`, "secret", { value: secret, readOnly: true });
  requestAnimationFrame(() => shown.firstElementChild.select());
  return shown;
}
