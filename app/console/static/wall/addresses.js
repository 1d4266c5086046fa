// Where a tenant, and one of its requests, is shown alone, and what leads there.

import { copier, make } from "../dom.js";

/**
 * Where a tenant's cells and requests are shown alone, and one of these.
 * @param {string} tenant @param {string | null} id
 */
export function addressOf(tenant, id = null) {
  return `#${["wall", tenant, ...(id === null ? [] : [id])].map(encodeURIComponent).join("/")}`;
}

/**
 * @param {string} text @param {string} address
 * @returns {HTMLAnchorElement}
 */
export function link(text, address) {
  return Object.assign(document.createElement("a"), { textContent: text, href: address });
}

/**
 * What can be done about a request.
 * @param {import("./requests.js").WallRequest} one
 */
export function actions({ id, tenant }) {
  const address = () => new URL(addressOf(tenant, id), location.href).href;
  const copies = [["id", () => id], ["link", address]].map(([what, text]) => {
    const element = copier(`the request's ${what}`, /** @type {() => string} */ (text));
    const both = make("span");
    both.append(`${what === "id" ? "Id" : "Link"} `, element);
    both.hidden = element.hidden;
    return both;
  });
  return [
    ...copies,
    link(`Only ${tenant}'s cells and requests`, addressOf(tenant, id)),
    link(`${tenant}'s record`, `#tenants/${encodeURIComponent(tenant)}`),
  ];
}
