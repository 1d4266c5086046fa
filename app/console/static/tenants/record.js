// A tenant's record as a form: what is changed in it is sent, and nothing else.

import { field, form, make } from "../dom.js";

const WORDS = /_/g;
const NUMBER = /^-?\d{1,15}(\.\d+)?$/;
const TEXTS = ["name", "status", "cache", "share_group", "unknown_fields"];

export async function recordForm(api, id, changed) {
  const path = `/tenants/${id}`;
  const answer = await api.get(path);
  const [tenant, effective] = await Promise.all([answer.json(), api.read(`${path}/effective-limits`)]);
  const limits = Object.entries(tenant.limits).map(([name, value]) => field(
    (name[0].toUpperCase() + name.slice(1)).replace(WORDS, " "), `limits.${name}`,
    { value: value ?? "", placeholder: said(effective[name]) },
  ));
  const fields = [
    field("Name", "name", { value: tenant.name }),
    field("Status", "status", { choices: ["active", "disabled"], value: tenant.status }),
    field("Weight", "weight", { value: tenant.weight }),
    field("Reserved blocks", "reserved_blocks", { value: tenant.reserved_blocks }),
    field("Cache", "cache", { choices: ["on", "off"], value: tenant.cache }),
    field("Share group", "share_group", { value: tenant.share_group ?? "" }),
    field("Unknown fields: empty is the service's setting", "unknown_fields", {
      choices: ["", "refuse", "ignore"], value: tenant.unknown_fields ?? "",
    }),
    make("p", "hint", "Limits: empty is the default, which stands there."),
    ...limits,
  ];
  const record = form("Save", fields, async (values) => {
    const body = patch(tenant, values);
    if (Object.keys(body).length === 0) throw new Error("Nothing is changed.");
    // Who has changed it meanwhile is not overwritten.
    await api.send("PATCH", path, body, { "if-match": answer.headers.get("etag") });
    changed();
  });
  record.classList.add("wide");
  return record;
}

function said(limit) { return limit === null ? "no limit" : String(limit); }

function patch(tenant, values) {
  const body = {};
  const limits = {};
  for (const [name, text] of Object.entries(values)) {
    const [group, limit] = name.split(".");
    const before = limit ? tenant.limits[limit] : tenant[name];
    if (text.trim() === String(before ?? "")) continue;
    if (limit) limits[limit] = valued(text);
    else body[group] = TEXTS.includes(name) ? text.trim() || null : valued(text);
  }
  return Object.keys(limits).length ? { ...body, limits } : body;
}

// A number where it is one; what is no text either is left to the service to refuse.
function valued(text) {
  const trimmed = text.trim();
  if (trimmed === "") return null;
  return NUMBER.test(trimmed) ? Number(trimmed) : trimmed;
}
