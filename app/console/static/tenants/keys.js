// A tenant's API keys.

import { button, field, grave, make, row, table } from "../dom.js";
import { toast } from "../toast.js";
import { ask } from "./asking.js";
import { alerting, emptiness, load, moment, primary, telling } from "./panel.js";

const DAY_SECONDS = 24 * 3600;

/** @param {HTMLElement} place @param {import("./panel.js").Owner} owner @returns {import("./panel.js").Tab} */
export function keysOf(place, { api, path, reveal, id }) {
  const told = alerting();
  const adding = () => askForKey(place, { api, path, reveal, id }, look);
  const look = () => load(place, "keys", async () => {
    const { keys } = await api.read(`${path}/keys`);
    const { region, body } = table("API keys", ["Key", "Id", "Made", "Ends", "State", "Actions"]);
    for (const key of keys) {
      row(body, [key.name, key.id, moment(key.created_at), endOf(key), stateOf(key), hands(key)]);
    }
    if (keys.length === 0) {
      return [told, emptiness("No keys", "Without one, nobody asks as this tenant.", primary("Make a key", adding))];
    }
    return [told, region, make("p", "hint", "A key that is rotated goes on for a day beside the new one.")];
  });
  /** @param {any} key */
  const hands = (key) => {
    if (!key.live || key.replaced_by) return "";
    return [
      button("Rotate", telling(told, async () => {
        const made = await api.send("POST", `${path}/keys/${key.id}/rotate`, { overlap_seconds: DAY_SECONDS });
        reveal("API key", made.api_key);
        toast(`The key ${key.name} is rotated.`);
        await look();
      })),
      grave("Revoke", telling(told, async () => {
        await api.send("DELETE", `${path}/keys/${key.id}`);
        toast(`The key ${key.name} is revoked.`);
        await look();
      })),
    ];
  };
  look();
  return { visit: look };
}

/**
 * @param {HTMLElement} place
 * @param {Pick<import("./panel.js").Owner, "api" | "path" | "reveal" | "id">} owner
 * @param {() => void} made
 */
export function askForKey(place, { api, path, reveal, id }, made) {
  const fields = [
    field("What it is for", "name", { required: true, maxLength: 200 }), lifetime(),
  ];
  ask(place, { title: `A new key for ${id}`, action: "Make the key", fields }, async (values) => {
    const key = await api.send("POST", `${path}/keys`, keyed(values));
    reveal("API key", key.api_key);
    toast(`The key ${values.name} is made.`);
    made();
  });
}

/** @param {Record<string, any>} values */
export function keyed({ expires_in_seconds: days, ...others }) {
  return { ...others, expires_in_seconds: days ? Number(days) * DAY_SECONDS : null };
}

export function lifetime() {
  return field("Days that it lasts", "expires_in_seconds", { type: "number", min: 1, placeholder: "for ever" });
}

/** @param {any} one */
export function endOf(one) { return one.expires_at === null ? "never" : moment(one.expires_at); }

/** @param {any} key */
function stateOf({ live, replaced_by: other }) {
  if (!live) return "ended";
  return other ? `replaced by ${other}` : "live";
}
