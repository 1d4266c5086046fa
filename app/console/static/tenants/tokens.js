// Admin tokens that are kept in the store.

import { field, grave, make, row, table } from "../dom.js";
import { toast } from "../toast.js";
import { ask } from "./asking.js";
import { endOf, keyed, lifetime } from "./keys.js";
import { alerting, emptiness, load, moment, primary, telling } from "./panel.js";
import { secretOf } from "./secret.js";

const HINT = "A program sends it as a bearer token to /admin; a person signs in with it here.";

/** @param {HTMLElement} place @param {import("../api.js").Api} api */
export function tokens(place, api) {
  const news = make("div");
  const list = make("div");
  const told = alerting();
  const hands = make("div", "tools");
  hands.append(primary("New token", () => adding()));
  place.append(hands, news, list);
  const look = () => load(list, "tokens", async () => {
    const found = (await api.read("/tokens")).tokens;
    const { region, body } = table("Admin tokens", ["For", "May", "Tenant", "Made", "Ends", "Actions"]);
    for (const token of found) {
      const revoke = telling(told, async () => {
        await api.send("DELETE", `/tokens/${token.id}`);
        toast(`The token for ${token.name} is revoked.`);
        await look();
      });
      row(body, [
        token.name, token.role === "read" ? "read" : "do all", token.tenant ?? "all",
        moment(token.created_at), token.live ? endOf(token) : "ended", token.live ? grave("Revoke", revoke) : "",
      ]);
    }
    const hint = "Those of the first start and of a file are not among them.";
    if (found.length === 0) return [told, emptiness("No tokens", hint)];
    return [told, region, make("p", "hint", hint)];
  });
  const adding = () => {
    const fields = [
      field("Who or what it is for", "name", { required: true }),
      field("Role", "role", { choices: ["read", "admin"] }),
      field("Tenant that it is held to", "tenant", { placeholder: "all" }),
      lifetime(),
    ];
    ask(place, { title: "A new admin token", action: "Make the token", fields }, async (values) => {
      const tenant = values.tenant.trim() || null;
      const made = await api.send("POST", "/tokens", { ...keyed(values), tenant });
      news.replaceChildren(secretOf("admin token", made.admin_token, HINT));
      toast(`The token for ${values.name} is made.`);
      look();
    });
  };
  look();
}
