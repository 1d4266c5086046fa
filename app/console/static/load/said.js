// Numbers in words, as one reads them at a glance; a dash for what is not known.

/** @typedef {number | null | undefined} Known */

/** @template {unknown} T @param {(value: T) => string} say @returns {(value: T | null | undefined) => string} */
const none = (say) => (value) => (value === null || value === undefined ? "–" : say(value));

const MANY = 10_000_000;

export const NUMBER = none((/** @type {number} */ value) =>
  value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : 0 }));
export const MS = none((/** @type {number} */ value) => `${NUMBER(value)} ms`);
export const PERCENT = none((/** @type {number} */ value) => `${value.toFixed(1)} %`);

// A part that is never told as the whole where something is missing.
export const PART = none((/** @type {number} */ value) => PERCENT(Math.floor(value * 1000) / 10));

export const COUNT = none((/** @type {number} */ value) => (value < MANY
  ? value.toLocaleString("en", { maximumFractionDigits: 0 })
  : value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 2 })));

export const DURATION = none((/** @type {number} */ seconds) => {
  if (seconds === 0) return "0 s";
  if (seconds < 1) return `${NUMBER(Math.round(seconds * 1000))} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  return seconds < 7200 ? `${NUMBER(Math.round(seconds / 60))} min` : `${NUMBER(Math.round(seconds / 360) / 10)} h`;
});

// An amount as the service tells it, with nine decimals, in a currency that may be of any name.
/** @param {string} amount @param {string | null} currency */
export function money(amount, currency) {
  if (currency === null) return "–";
  const value = Number(amount);
  const digits = value >= 1 || value === 0
    ? { minimumFractionDigits: 2, maximumFractionDigits: 2 }
    : { maximumSignificantDigits: 2 };
  return `${currency} ${value.toLocaleString("en", digits)}`;
}
