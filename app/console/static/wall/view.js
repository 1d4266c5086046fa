// The wall: the KV cache live, a cell a block, of each replica.

import { Replicas } from "./replicas.js";
import { Wall } from "./wall.js";

/**
 * An address is `#wall/TENANT/REQUEST`: that tenant's cells and requests alone, and one of these.
 * @param {HTMLElement} element
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
  return {
    close: () => replicas.close(),
    /** @param {string[]} to */
    visit(to) {
      shown = to;
      for (const { wall } of replicas.walls.values()) wall.visit(to);
    },
  };
}

/** @typedef {typeof import("../api.js").api} Api */
