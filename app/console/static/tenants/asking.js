// Forms of this view, in the page or in a dialog: what is refused of a field is told at the field.

import { button, make } from "../dom.js";

/** @typedef {(values: Record<string, any>, form: HTMLFormElement) => unknown} Sent */

/** @param {string} title @param {Element[]} fields @param {Sent} sent @param {Element[]} beside */
export function asking(title, fields, sent, beside = []) {
  const element = make("form", "fields");
  const hands = make("div", "tools");
  hands.append(make("button", "primary", title), ...beside);
  const told = make("p", "problem");
  told.setAttribute("role", "alert");
  element.append(...fields, hands, told);
  element.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (element.ariaBusy === "true") return;
    element.ariaBusy = "true";
    told.textContent = "";
    for (const complaint of element.querySelectorAll(".complaint")) complaint.remove();
    for (const input of element.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
    try {
      await sent(Object.fromEntries(new FormData(element)), element);
    } catch (error) {
      told.textContent = told.isConnected ? toldAt(element, error) : "";
    } finally {
      element.ariaBusy = "false";
    }
  });
  return element;
}

// The form in a dialog, which is closed when it is done.
/**
 * @param {HTMLElement} place
 * @param {{ title: string, action: string, fields: Element[], hint?: string }} what
 * @param {Sent} sent
 */
export function ask(place, { title, action, fields, hint = "" }, sent) {
  const dialog = make("dialog", "ask");
  dialog.ariaLabel = title;
  const cancel = button("Cancel", () => dialog.close());
  cancel.className = "quiet";
  const form = asking(action, fields, async (values, element) => {
    await sent(values, element);
    dialog.close();
  }, [cancel]);
  dialog.append(make("h2", "", title), ...(hint ? [make("p", "hint", hint)] : []), form);
  dialog.addEventListener("close", () => dialog.remove());
  place.append(dialog);
  dialog.showModal();
  return dialog;
}

// Tells what is wrong with fields below them; the rest is returned.
/** @param {HTMLFormElement} form @param {Error & { complaints?: import("../api.js").Complaint[] }} error */
function toldAt(form, error) {
  const others = [];
  /** @type {HTMLElement[]} */
  const wrong = [];
  for (const { field, detail } of error.complaints ?? []) {
    const input = form.elements.namedItem(field);
    if (!(input instanceof HTMLElement)) {
      others.push(`${field}: ${detail}`);
      continue;
    }
    const label = input.closest("label");
    const complaint = make("p", "problem complaint", `${nameOf(label)}: ${detail}`);
    complaint.setAttribute("role", "alert");
    (label ?? input).after(complaint);
    input.setAttribute("aria-invalid", "true");
    wrong.push(input);
  }
  wrong[0]?.focus();
  return others.join("; ") || (wrong.length ? "" : error.message);
}

/** @param {Element | null} label */
function nameOf(label) { return label?.firstChild?.textContent?.trim() ?? ""; }
