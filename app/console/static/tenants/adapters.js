// The adapters of a tenant or a share group, and the versions of one; where they are is told every
// two seconds while the page is seen.

import { button, field, grave, make, put, rest, row, table } from "../dom.js";
import { toast } from "../toast.js";
import { ask } from "./asking.js";
import { alerting, emptiness, link, load, moment, primary, telling } from "./panel.js";

const POLL_MS = 2000;
const MEBIBYTE = 1 << 20;
const COLUMNS = [
  "Adapter", "Version", "Pinned", "Size", "Where", "Used", "Last used", "From the store", "To the device",
];
const OF_VERSION = ["Version", "Active", "Rank", "Layers", "Size", "Where", "Made"];

/**
 * @param {HTMLElement} place
 * @param {import("./panel.js").Owner} owner
 * @param {string[]} path the adapter whose versions are shown
 * @returns {import("./panel.js").Tab}
 */
export function adaptersOf(place, owner, path) {
  const adapters = new Adapters(place, owner);
  adapters.begin();
  adapters.visit(path);
  return adapters;
}

class Adapters {
  /** @param {HTMLElement} place @param {import("./panel.js").Owner} owner */
  constructor(place, { api, path, address }) {
    this.place = place;
    this.api = api;
    this.path = `${path}/adapters`;
    this.address = `${address}/adapters`;
    this.rows = /** @type {Map<string, HTMLTableRowElement>} */ (new Map()); // by name
    this.pinned = /** @type {Set<string>} */ (new Set());
    this.open = /** @type {string | undefined} */ (undefined);
    this.told = alerting();
    this.list = make("div");
    this.detail = make("div");
    this.nothing = emptiness("No adapters", "An adapter (LoRA) changes the model for this owner alone: PEFT's two files.");
    const { region, body } = table("Adapters", [...COLUMNS, "Actions"]);
    this.region = region;
    this.body = body;
    const hands = make("div", "tools");
    hands.append(primary("New adapter", () => this.putting()));
    place.append(hands, this.told, this.list, this.detail);
  }

  async begin() {
    await load(this.list, "adapters", async () => {
      await this.look();
      return [this.region, this.nothing];
    });
    await this.poll();
  }

  async look() {
    const { adapters } = await this.api.read(`${this.path}?limit=1000`);
    for (const [name, element] of this.rows) {
      if (adapters.some((/** @type {any} */ one) => one.name === name)) continue;
      element.remove();
      this.rows.delete(name);
    }
    adapters.forEach((/** @type {any} */ one, /** @type {number} */ index) => this.show(one, index));
    this.region.hidden = adapters.length === 0;
    this.nothing.hidden = adapters.length > 0;
  }

  // For as long as it is on the page.
  async poll() {
    for (let failed = false; ;) {
      await rest(POLL_MS);
      if (!this.place.isConnected) return;
      if (document.hidden || !this.region.isConnected) continue;
      try {
        await this.look();
        if (failed) put(this.told, "");
        failed = false;
      } catch (error) {
        failed = true;
        put(this.told, error.message);
        if (error.status === 404) return; // whose they are is gone
      }
    }
  }

  /** @param {any} adapter @param {number} index */
  show(adapter, index) {
    const texts = textsOf(adapter);
    let element = this.rows.get(adapter.name);
    if (element === undefined) {
      element = row(this.body, [link(adapter.name, `${this.address}/${adapter.name}`), ...texts, this.hands(adapter.name)]);
      this.rows.set(adapter.name, element);
    }
    const { cells } = element;
    texts.forEach((text, at) => put(cells[at + 1], text));
    if (adapter.pinned) this.pinned.add(adapter.name);
    else this.pinned.delete(adapter.name);
    const pin = element.querySelector("button.pin");
    if (pin) put(pin, adapter.pinned ? "Unpin" : "Pin");
    const there = this.body.rows[index];
    if (there !== element) this.body.insertBefore(element, there);
  }

  /** @param {string} name */
  hands(name) {
    const pinning = button("Pin", this.doing("POST", name, () => (this.pinned.has(name) ? "/unpin" : "/pin")));
    pinning.className = "pin";
    return [pinning, grave("Delete", this.doing("DELETE", name))];
  }

  // A write, behind which the list, and the versions that are shown, are asked anew.
  /** @param {string} method @param {string} name @param {() => string} suffix @param {unknown} [body] */
  doing(method, name, suffix = () => "", body = undefined) {
    return telling(this.told, async () => {
      await this.api.send(method, `${this.path}/${name}${suffix()}`, body);
      if (method === "DELETE") {
        toast(`The adapter ${name} is deleted.`);
        if (this.open === name) location.hash = this.address;
      }
      await Promise.all([this.look(), method === "DELETE" ? null : this.visit([this.open])]);
    });
  }

  // An adapter's versions below the others, the newest first.
  /** @param {(string | undefined)[]} path */
  async visit([name]) {
    const isAnother = this.open !== name;
    this.open = name;
    if (name === undefined) {
      this.detail.replaceChildren();
      return;
    }
    const versions = this.api.read(`${this.path}/${encodeURIComponent(name)}/versions?limit=1000`);
    const place = isAnother ? make("section", "opened") : this.detail.firstElementChild;
    if (!(place instanceof HTMLElement)) return;
    place.ariaLabel = `The adapter ${name}`;
    if (isAnother) this.detail.replaceChildren(place);
    const filled = async () => this.versions(name, (await versions).versions);
    if (isAnother) await load(place, name, filled);
    else place.replaceChildren(...await filled());
  }

  /** @param {string} name @param {any[]} versions */
  versions(name, versions) {
    const { region, body } = table(`Versions of ${name}`, [...OF_VERSION, "Actions"]);
    for (const { version, active, ...one } of versions) {
      const activate = this.doing("POST", name, () => "/activate", { version });
      row(body, [
        version, active ? "yes" : "no", one.rank, one.targets.join(", "), sizeOf(one),
        placeOf(one), moment(one.created_at), active ? "" : button("Activate", activate),
      ]);
    }
    const bar = make("div", "across");
    bar.append(make("h3", "", name), link("Close", this.address));
    return [bar, region];
  }

  putting() {
    const fields = [
      field("Name", "name", { required: true, value: this.open ?? "" }),
      field("adapter_config.json", "config", { type: "file", accept: ".json", required: true }),
      field("adapter_model.safetensors", "weights", { type: "file", accept: ".safetensors", required: true }),
      field("Activate it", "activate", { choices: ["at once", "later"] }),
    ];
    const what = { title: "An adapter, or a new version of one", action: "Put the adapter", fields };
    ask(this.place, what, async ({ name, config, weights, activate }) => {
      const query = activate === "at once" ? "" : "?activate=false";
      const files = { "adapter_config.json": config, "adapter_model.safetensors": weights };
      const made = await this.api.upload(`${this.path}/${encodeURIComponent(name)}${query}`, files);
      toast(`Version ${made.version} of ${name} is put.`);
      await Promise.all([this.look(), this.visit([this.open])]);
    });
  }
}

/** @param {any} adapter */
function textsOf({ version, pinned, engine, ...one }) {
  return [
    String(version), pinned ? "yes" : "no", sizeOf(/** @type {any} */ (one)), placeOf({ engine }),
    engine ? `${engine.uses}×` : "–", moment(engine?.used_at ?? null),
    secondsOf(engine?.fetch_seconds), secondsOf(engine?.load_seconds),
  ];
}

/** @param {{ bytes: number }} adapter */
function sizeOf({ bytes }) { return `${(bytes / MEBIBYTE).toFixed(1)} MiB`; }

// It is in the store in any case.
/** @param {{ engine: { where: string[] } | null }} adapter */
function placeOf({ engine }) { return engine === null ? "–" : engine.where.join(", ") || "store"; }

/** @param {number | null | undefined} seconds */
function secondsOf(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  return seconds < 1 ? `${(1000 * seconds).toFixed(1)} ms` : `${seconds.toFixed(2)} s`;
}
