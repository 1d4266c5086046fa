// The wall: the KV cache live, a cell a block, of each replica.

import { Demonstration } from "./demonstration.js";
import { Replicas } from "./replicas.js";
import { Wall } from "./wall.js";
import { make } from "../dom.js";
import { Worth } from "./worth.js";

/**
 * An address is `#wall/TENANT/REQUEST`: that tenant's cells and requests alone, and one of these.
 * @param {HTMLElement & {cells?: import("./frames.js").Cells}} element
 * @param {Api} api
 * @param {string[]} path
 */
export function mount(element, api, path) {
  let shown = path;
  const replicas = new Replicas(element, (part, replica, heard) => {
    const wall = new Wall(api, part, replica, heard);
    wall.visit(shown);
    return wall;
  });
  const above = document.createElement("section");
  above.ariaLabel = "Demonstration";
  const saved = Object.assign(make("p", "saved"), { hidden: true });
  element.prepend(above, saved);
  const demonstration = new Demonstration(above, api, () => element.cells);
  const worth = new Worth(saved, api);
  worth.visit(path[0]);
  return {
    close() {
      demonstration.close();
      worth.close();
      replicas.close();
    },
    /** @param {string[]} to */
    visit(to) {
      shown = to;
      worth.visit(to[0]);
      for (const { wall } of replicas.walls.values()) wall.visit(to);
    },
  };
}

/** @typedef {typeof import("../api.js").api} Api */
