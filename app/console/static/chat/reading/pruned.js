// Trees, without what was there before.

/** @typedef {import("./tree.js").Part} Part */

/**
 * Siblings as they are now; a 0 stands for one that is what it was.
 * @param {readonly Part[]} before @param {readonly Part[]} now @returns {Part[]}
 */
export function pruned(before, now) {
  return now.map((part, index) => prunedPart(before[index], part));
}

/** @param {Part | undefined} before @param {Part} now @returns {Part} */
function prunedPart(before, now) {
  if (before === undefined) return now;
  if (typeof now === "string" || now === 0) return now === before ? 0 : now;
  if (typeof before === "string" || before === 0 || before[0] !== now[0]) return now;
  const [tag, attributes, ...parts] = now;
  const [, attributesBefore, ...partsBefore] = before;
  const changed = pruned(partsBefore, parts);
  const isSame = parts.length === partsBefore.length && changed.every((part) => part === 0)
    && JSON.stringify(attributes) === JSON.stringify(attributesBefore);
  return isSame ? 0 : [tag, attributes, ...changed];
}
