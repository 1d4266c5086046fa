// Cells in words.

import { FINDABLE, HELD, LEASED, STATE } from "./frames.js";
import { KINDS, kindOf } from "./picture.js";

/** @typedef {import("./frames.js").Cells} Cells */
/** @typedef {[name: string, count: number, index: number]} Owned cells of one owner */

export const MOST_OWNERS = 8; // named beside the picture

/** @param {number} value */
export const number = (value) => value.toLocaleString("en");

/** @param {number} index of a kind */
export const kindInWords = (index) => KINDS[index].replace("-", " ");

/**
 * How many cells there are of each kind, and of each owner, the largest first.
 * @param {Cells} cells
 */
export function counted(cells) {
  const kinds = KINDS.map(() => 0);
  const owned = cells.owners.map(() => 0);
  for (let cell = 0; cell < cells.length; cell++) {
    kinds[kindOf(cells, cell)]++;
    if (cells.state[cell]) owned[cells.owner[cell]]++;
  }
  const owners = cells.owners.map((name, index) => /** @type {Owned} */ ([name, owned[index], index]));
  owners.sort((one, other) => other[1] - one[1]);
  return { kinds, owners };
}

/**
 * What a cell is, at a moment of performance.now().
 * @param {Cells} cells @param {number} cell @param {number} now
 */
export function cellInWords(cells, cell, now) {
  const state = cells.state[cell];
  const isSlot = cell >= cells.numBlocks;
  const name = isSlot ? `Host slot ${cell - cells.numBlocks}` : `Block ${cell}`;
  if (!state) return `${name}: free.`;
  const facts = [kindInWords(kindOf(cells, cell))];
  if (state & HELD) facts.push(`held by ${cells.references[cell]}`);
  facts.push(state & FINDABLE ? "can be found by its hash" : "not full yet, or not cached");
  if (state & LEASED && !facts.includes("leased")) facts.push("leased");
  if (state & STATE && !facts.includes("state")) facts.push("a state");
  const seconds = Math.max(0, Math.floor((now - cells.changed[cell]) / 1000));
  return `${name} of ${ownerOf(cells, cell) || "nobody"}: ${facts.join(", ")}; seen unchanged for ${seconds} s.`;
}

/**
 * What the cells of a tile are.
 * @param {Cells} cells @param {number} first @param {number} end
 */
export function tileInWords(cells, first, end) {
  const kinds = KINDS.map(() => 0);
  for (let cell = first; cell < end; cell++) kinds[kindOf(cells, cell)]++;
  const isSlot = first >= cells.numBlocks, base = isSlot ? cells.numBlocks : 0;
  const counts = kinds.map((count, index) => `${count} ${kindInWords(index)}`).filter((_, index) => kinds[index]);
  return `${isSlot ? "Host slots" : "Blocks"} ${first - base} to ${end - 1 - base}: ${counts.join(", ")}.`;
}

/**
 * The owner of a cell; empty: nobody.
 * @param {Cells} cells @param {number} cell
 */
export function ownerOf(cells, cell) {
  return cells.state[cell] ? cells.owners[cells.owner[cell]] : "";
}

/**
 * All of them.
 * @param {Cells} cells @param {number[]} kinds @param {Owned[]} owners
 */
export function summary(cells, kinds, owners) {
  const told = KINDS.slice(0, -1).filter((kind, index) => kind !== "state" || kinds[index] > 0);
  const counts = told.map((kind) => `${kinds[KINDS.indexOf(kind)]} ${kind.replace("-", " ")}`);
  const shown = owners.filter(([, count]) => count > 0).slice(0, MOST_OWNERS);
  const parts = shown.map(([name, count]) => `${name || "nobody"} ${count}`);
  const slots = cells.numSlots ? ` and ${cells.numSlots} host slots` : "";
  const waiting = cells.pending ? ` ${cells.pending} cells are yet to be told.` : "";
  const who = parts.length ? ` By owner: ${parts.join(", ")}.` : "";
  return `${cells.numBlocks} blocks${slots}: ${counts.join(", ")}.${who}${waiting}`;
}
