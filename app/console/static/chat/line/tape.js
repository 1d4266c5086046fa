// The last messages of a line as they went, to be looked at.

/** @typedef {["client" | "server", Record<string, any>]} Said */

const MOST = 500;

export class Tape {
  constructor() {
    /** @type {Said[]} */
    this.said = [];
    this.count = 0; // all that ever went
    this.heard = () => {};
  }

  /** @param {"client" | "server"} who @param {Record<string, any>} message */
  add(who, message) {
    this.count++;
    this.said.push([who, message]);
    if (this.said.length > MOST) this.said.shift();
    this.heard();
  }
}
