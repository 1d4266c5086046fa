// The system prompts of a tenant or a share group; below them one of them, with its versions and text.

import { button, copier, field, grave, make, row, table } from "../dom.js";
import { toast } from "../toast.js";
import { ask } from "./asking.js";
import { alerting, emptiness, link, load, moment, primary, telling } from "./panel.js";

const COLUMNS = ["Prompt", "Active version", "Characters", "Tokens", "Blocks", "Pinned", "Actions"];
const OF_VERSION = ["Version", "Active", "Made", "Characters", "Tokens", "Warmed", "Actions"];
const NAME = "[A-Za-z0-9_\\-]{1,64}";
const NAMED = "Letters, digits, _ and -";
const HINT = "What stands before the first {{variable}} is computed once, and shared by all that is asked with it.";

/**
 * @param {HTMLElement} place
 * @param {import("./panel.js").Owner} owner
 * @param {string[]} path the prompt that is open, and its version
 * @returns {import("./panel.js").Tab}
 */
export function promptsOf(place, owner, path) {
  const prompts = new Prompts(place, owner);
  prompts.look();
  prompts.visit(path);
  return prompts;
}

class Prompts {
  /** @param {HTMLElement} place @param {import("./panel.js").Owner} owner */
  constructor(place, { api, path, address }) {
    this.place = place;
    this.api = api;
    this.path = `${path}/prompts`;
    this.address = `${address}/prompts`;
    this.told = alerting();
    this.list = make("div");
    this.detail = make("div");
    this.open = /** @type {string | undefined} */ (undefined);
    const hands = make("div", "tools");
    hands.append(primary("New prompt", () => this.put()));
    place.append(hands, this.told, this.list, this.detail);
  }

  look() {
    return load(this.list, "prompts", async () => {
      const { prompts } = await this.api.read(`${this.path}?limit=1000`);
      if (prompts.length === 0) return [emptiness("No prompts", HINT)];
      const { region, body } = table("System prompts", COLUMNS);
      for (const one of prompts) {
        row(body, [
          link(one.name, `${this.address}/${one.name}`), one.version, one.characters,
          one.tokens ?? "not warm", one.blocks ?? "–", one.pinned ? "yes" : "no", this.hands(one),
        ]);
      }
      return [region];
    });
  }

  /** @param {any} prompt */
  hands({ name, pinned, blocks }) {
    const hands = [
      button(pinned ? "Unpin" : "Pin", this.doing("POST", name, pinned ? "/unpin" : "/pin", pinned ? "unpinned" : "pinned")),
      grave("Delete", this.doing("DELETE", name, "", "deleted")),
    ];
    if (blocks === null) hands.push(button("Warm", this.doing("POST", name, "/warm", "warm")));
    return hands;
  }

  // A write, behind which all is asked anew.
  /** @param {string} method @param {string} name @param {string} suffix @param {string} done @param {unknown} [body] */
  doing(method, name, suffix, done, body) {
    return telling(this.told, async () => {
      await this.api.send(method, `${this.path}/${name}${suffix}`, body);
      toast(`The prompt ${name} is ${done}.`);
      if (method === "DELETE" && this.open === name) location.hash = this.address;
      await this.anew();
    });
  }

  async anew() {
    await this.look();
    if (this.open !== undefined) await this.visit([this.open]);
  }

  // Shows a prompt's versions, and the text of one: the active one, unless it is said which.
  /** @param {string[]} path */
  async visit([name, version]) {
    this.open = name;
    this.detail.replaceChildren();
    if (name === undefined) return;
    const place = make("section", "opened");
    place.ariaLabel = `The prompt ${name}`;
    this.detail.append(place);
    const path = `${this.path}/${encodeURIComponent(name)}`;
    await load(place, name, async () => {
      const [{ versions }, shown] = await Promise.all([
        this.api.read(`${path}/versions?limit=1000`),
        this.api.read(path + (version === undefined ? "" : `?version=${encodeURIComponent(version)}`)),
      ]);
      return [this.heading(shown), this.versions(name, versions, shown), ...textOf(shown)];
    });
  }

  /** @param {any} shown */
  heading({ name, text }) {
    const bar = make("div", "across");
    const title = make("h3", "", name);
    const hands = make("div", "tools");
    hands.append(button("New version", () => this.put(name, text)), link("Close", this.address));
    bar.append(title, hands);
    return bar;
  }

  /** @param {string} name @param {any[]} versions @param {any} shown */
  versions(name, versions, shown) {
    const { region, body } = table(`Versions of ${name}`, OF_VERSION);
    for (const one of versions) {
      const activate = this.doing("POST", name, "/activate", `that of version ${one.version}`, { version: one.version });
      const text = link("Text", `${this.address}/${name}/${one.version}`);
      if (one.version === shown.version) text.setAttribute("aria-current", "true");
      row(body, [
        one.version, one.active ? "yes" : "no", moment(one.created_at), one.characters, one.tokens ?? "–",
        moment(one.warmed_at), one.active ? text : [text, " ", button("Activate", activate)],
      ]);
    }
    return region;
  }

  put(name = "", text = "") {
    const fields = [
      field("Name", "name", { required: true, pattern: NAME, title: NAMED, value: name, readOnly: name !== "" }),
      field("Text", "text", { tag: "textarea", rows: 10, required: true, value: text }),
    ];
    const what = { title: name ? `A new version of ${name}` : "A new prompt", action: "Put it", fields, hint: HINT };
    ask(this.place, what, async (values) => {
      const put = await this.api.send("PUT", `${this.path}/${encodeURIComponent(values.name)}`, { text: values.text });
      toast(`Version ${put.version} of ${put.name} is active.`);
      const there = `${this.address}/${put.name}`;
      this.look();
      if (location.hash === there) await this.visit([put.name]);
      else location.hash = there;
    });
  }
}

/** @param {any} prompt */
function textOf({ name, version, text }) {
  const bar = make("div", "across");
  bar.append(make("h4", "", `Text of version ${version}`), copier(`the text of ${name}`, () => text));
  const place = make("pre", "prompt", text);
  Object.assign(place, { tabIndex: 0, ariaLabel: `Text of ${name}`, role: "region" });
  return [bar, place];
}
