// A tenant's record as a form: what is changed in it is sent, and nothing else.

import { field, make } from "../dom.js";
import { toast } from "../toast.js";
import { asking } from "./asking.js";
import { load } from "./panel.js";

const WORDS = /_/g;
const NUMBER = /^-?\d{1,15}(\.\d+)?$/;
const TEXTS = new Set(["name", "cache", "share_group", "adapter", "unknown_fields"]);

/** @param {HTMLElement} place @param {import("./panel.js").Owner} owner @returns {import("./panel.js").Tab} */
export function recordOf(place, { api, path, changed }) {
  const look = () => load(place, "the record", async () => {
    const answer = await api.get(path);
    const [tenant, effective] = await Promise.all([answer.json(), api.read(`${path}/effective-limits`)]);
    const record = asking("Save", fieldsOf(tenant, effective), async (values) => {
      const body = patch(tenant, values);
      if (Object.keys(body).length === 0) throw new Error("Nothing is changed.");
      // Who has changed it meanwhile is not overwritten.
      await api.send("PATCH", path, body, { "if-match": answer.headers.get("etag") ?? "*" });
      toast("The record is saved.");
      await Promise.all([look(), changed()]);
    });
    return [record];
  });
  look();
  return {};
}

/** @param {any} tenant @param {Record<string, any>} effective */
function fieldsOf(tenant, effective) {
  const limits = Object.entries(tenant.limits).map(([name, value]) => field(
    (name[0].toUpperCase() + name.slice(1)).replace(WORDS, " "), `limits.${name}`,
    { value: value ?? "", placeholder: said(effective[name]) },
  ));
  const record = [
    field("Name", "name", { value: tenant.name }),
    field("Weight", "weight", { value: tenant.weight }),
    field("Reserved blocks", "reserved_blocks", { value: tenant.reserved_blocks }),
    field("Cache", "cache", { choices: ["on", "off"], value: tenant.cache }),
    field("Share group", "share_group", { value: tenant.share_group ?? "" }),
    field("Adapter", "adapter", { value: tenant.adapter ?? "" }),
    field("Unknown fields", "unknown_fields", {
      choices: ["", "refuse", "ignore"], value: tenant.unknown_fields ?? "", title: "Empty: as the service has it",
    }),
  ];
  const hint = make("p", "hint", "An empty one is the default, which stands in it in grey.");
  return [grid(record), make("h3", "", "Limits"), hint, grid(limits)];
}

/** @param {Element[]} fields */
function grid(fields) {
  const element = make("div", "fields wide");
  element.append(...fields);
  return element;
}

/** @param {string | number | null} limit */
function said(limit) { return limit === null ? "no limit" : String(limit); }

/** @param {any} tenant @param {Record<string, string>} values */
function patch(tenant, values) {
  /** @type {Record<string, unknown>} */
  const body = {};
  /** @type {Record<string, unknown>} */
  const limits = {};
  for (const [name, text] of Object.entries(values)) {
    const [group, limit] = name.split(".");
    const before = limit ? tenant.limits[limit] : tenant[name];
    if (text.trim() === String(before ?? "")) continue;
    if (limit) limits[limit] = valued(text);
    else body[group] = TEXTS.has(name) ? text.trim() || null : valued(text);
  }
  return Object.keys(limits).length ? { ...body, limits } : body;
}

// A number where it is one; what is no text either is left to the service to refuse.
/** @param {string} text */
function valued(text) {
  const trimmed = text.trim();
  if (trimmed === "") return null;
  return NUMBER.test(trimmed) ? Number(trimmed) : trimmed;
}
