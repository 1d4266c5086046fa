// Signs in and out, and shows one view at a time.

import { api } from "./api.js";
import { button, dressed, make, part } from "./dom.js";
import * as signIn from "./sign_in.js";

/**
 * @typedef {{ close(): void, visit?(path: string[]): void }} Mounted
 * @typedef {{ mount(section: HTMLElement, own: import("./api.js").Api, path: string[]): Mounted }} Part
 * @typedef {{ name: string, title: string, style: string, load(): Promise<Part>, isFor(): boolean, stays?: boolean }} View
 */

// A view is loaded when it is shown first, in a section: `mount(section, api, path)` returns its
// `close()` and, where something in it has an address, `visit(path)`. An address is `#view/and/a/path`,
// of which the path is the parts behind the view. A view that stays is only hidden.
/** @type {View[]} */
const VIEWS = [
  { name: "wall", title: "The wall", style: "wall/wall.css", load: () => import("./wall/view.js"), isFor: () => api.seesAll },
  { name: "tenants", title: "Tenants", style: "tenants/tenants.css", load: () => import("./tenants/view.js"), isFor: () => api.isOperator },
  { name: "load", title: "Load", style: "load/load.css", load: () => import("./load/view.js"), isFor: () => api.seesAll },
  { name: "chat", title: "Chat", style: "chat/chat.css", load: () => import("./chat/view.js"), isFor: () => true, stays: true },
];

const door = part(document, "#door");
const links = part(document, "#views");
const leave = part(document, "#leave");
const refusal = part(document, "#refusal");
/** @type {Map<string, { section: HTMLElement, mounted: Mounted | null }>} */
const shown = new Map(); // by the view's name

function offered() {
  return VIEWS.filter((view) => view.isFor());
}

// The view that the address names, else the first one, and the path in it.
function chosen() {
  const views = offered();
  try {
    const [name, ...path] = location.hash.slice(1).split("/").map(decodeURIComponent);
    const view = views.find((one) => one.name === name);
    if (view) return { view, path };
  } catch {
    // the address was mistyped
  }
  return { view: views[0], path: [] };
}

function show() {
  const { view, path } = chosen();
  for (const other of VIEWS) {
    if (other !== view) close(other);
  }
  for (const link of links.children) {
    link.setAttribute("aria-current", link.hash === `#${view.name}` ? "page" : "false");
  }
  const entry = shown.get(view.name);
  if (entry === undefined) {
    open(view);
    return;
  }
  entry.section.hidden = false;
  entry.mounted?.visit?.(path);
}

/** @param {View} view */
async function open(view) {
  const section = document.createElement("section");
  section.id = `view-${view.name}`;
  section.setAttribute("aria-label", view.title);
  part(document, "#main").append(section);
  const entry = { section, mounted: /** @type {Mounted | null} */ (null) };
  shown.set(view.name, entry);
  let loaded;
  try {
    [loaded] = await Promise.all([view.load(), dressed(new URL(view.style, import.meta.url))]);
  } catch { // the service is away, or another one by now
    const why = make("p", "problem", "This view did not load. Reload the page.");
    why.setAttribute("role", "alert");
    section.append(why);
    return;
  }
  if (shown.get(view.name) === entry) entry.mounted = loaded.mount(section, api, chosen().path);
}

/** @param {View} view */
function close(view, isForGood = !view.stays) {
  const entry = shown.get(view.name);
  if (entry === undefined) return;
  entry.section.hidden = true;
  if (!isForGood) return;
  entry.mounted?.close();
  entry.section.remove();
  shown.delete(view.name);
}

function enter() {
  const entries = offered().map(({ name, title }) =>
    Object.assign(document.createElement("a"), { href: `#${name}`, textContent: title }));
  links.replaceChildren(...entries);
  door.hidden = true;
  links.hidden = leave.hidden = false;
  show();
}

function exit(reason = "") {
  for (const view of VIEWS) close(view, true);
  api.token = api.chatKey = api.operator = null;
  signIn.forget();
  refusal.textContent = reason;
  door.hidden = false;
  links.hidden = leave.hidden = true;
  part(document, "#token").focus();
}

// Enter with the first of some tokens that holds.
/** @param {string[]} tokens */
async function check(tokens) {
  let reason = "";
  for (const token of tokens) {
    api.token = token;
    try {
      await api.check();
      refusal.textContent = "";
      enter();
      return;
    } catch (error) {
      reason = error.message;
    }
  }
  exit(reason);
}

async function begin() {
  if (signIn.isOffered) {
    const elsewhere = () => signIn.provider().then(signIn.begin).catch(({ message }) => exit(message));
    door.append(button("Sign in with your account", elsewhere));
    const tokens = await signIn.finish();
    if (tokens.length > 0) {
      await check(tokens);
      return;
    }
  }
  await check(api.token === null ? [] : [api.token]);
}

door.addEventListener("submit", (/** @type {SubmitEvent} */ event) => {
  event.preventDefault();
  const token = part(document, "#token").value.trim();
  door.reset();
  check([token]);
});
leave.addEventListener("click", () => exit());
part(document, "#main").addEventListener("refused", (/** @type {CustomEvent} */ { detail }) => exit(detail));
window.addEventListener("hashchange", () => { if (door.hidden) show(); });
begin().catch(({ message }) => exit(message));
