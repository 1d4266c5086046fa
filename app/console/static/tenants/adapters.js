// The adapters of a tenant or a share group; where they are is told every two seconds while the
// page is seen.

import { button, field, form, grave, make, put, rest, row, table, tried } from "../dom.js";

const POLL_MS = 2000;
const MEBIBYTE = 1 << 20;
const COLUMNS = [
  "Adapter", "Version", "Pinned", "Size", "Where", "Used", "Last used", "From the store", "To the device",
];
const OF_VERSION = ["Version", "Active", "Rank", "Layers", "Size", "Where", "Made"];

export async function adaptersOf(api, owner, changed, tell) {
  const adapters = new Adapters(api, `${owner}/adapters`, changed, tell);
  await adapters.look();
  adapters.poll();
  return [adapters.region, adapters.versions, adapters.putting()];
}

class Adapters {
  constructor(api, path, changed, tell) {
    Object.assign(this, { api, path, changed, tell });
    this.rows = new Map(); // by name: the row
    const { region, body } = table("Adapters", [...COLUMNS, "Actions"]);
    Object.assign(this, { region, body });
    this.versions = make("div");
  }

  async look() {
    const { adapters } = await this.api.read(`${this.path}?limit=1000`);
    for (const [name, element] of this.rows) {
      if (adapters.some((one) => one.name === name)) continue;
      element.remove();
      this.rows.delete(name);
    }
    adapters.forEach((one, index) => this.show(one, index));
  }

  // For as long as it is on the page, where it is put once it is made.
  async poll() {
    for (let failed = false; ;) {
      await rest(POLL_MS);
      if (!this.region.isConnected) return;
      if (document.hidden || this.region.closest("[aria-busy=true]")) continue;
      try {
        await this.look();
        if (failed) this.tell(null);
        failed = false;
      } catch (error) {
        failed = true;
        if (this.region.isConnected) this.tell(error);
        if (error.status === 404) return; // whose they are is gone
      }
    }
  }

  show(adapter, index) {
    const texts = textsOf(adapter);
    let element = this.rows.get(adapter.name);
    if (element === undefined) {
      element = row(this.body, [...texts, this.hands(adapter.name)]);
      this.rows.set(adapter.name, element);
    }
    texts.forEach((text, at) => put(element.cells[at], text));
    element.isPinned = adapter.pinned;
    put(element.querySelector("button.pin"), adapter.pinned ? "Unpin" : "Pin");
    const there = this.body.rows[index];
    if (there !== element) this.body.insertBefore(element, there);
  }

  hands(name) {
    const doing = (method, suffix) => this.doing(async () => {
      await this.api.send(method, `${this.path}/${name}${suffix()}`);
    });
    const isPinned = () => this.rows.get(name).isPinned;
    const pinning = button("Pin", doing("POST", () => (isPinned() ? "/unpin" : "/pin")));
    pinning.className = "pin";
    return [
      button("Versions", tried(this.tell, () => this.open(name))),
      pinning,
      grave("Delete", doing("DELETE", () => "")),
    ];
  }

  // A write, behind which everything is shown anew.
  doing(work) {
    return tried(this.tell, async () => {
      await work();
      await this.changed();
    });
  }

  // An adapter's versions below the others, the newest first.
  async open(name) {
    const path = `${this.path}/${name}`;
    const { versions } = await this.api.read(`${path}/versions?limit=1000`);
    const { region, body } = table(`Versions of ${name}`, [...OF_VERSION, "Actions"]);
    for (const { version, active, ...one } of versions) {
      const activate = this.doing(() => this.api.send("POST", `${path}/activate`, { version }));
      row(body, [
        String(version), active ? "yes" : "no", String(one.rank), one.targets.join(", "), sizeOf(one),
        placeOf(one), momentOf(one.created_at), active ? "" : button("Activate", activate),
      ]);
    }
    this.versions.replaceChildren(make("h3", "", `Versions of ${name}`), region);
    region.focus();
  }

  putting() {
    const fields = [
      field("Name", "name", { required: true }),
      field("adapter_config.json", "config", { type: "file", accept: ".json", required: true }),
      field("adapter_model.safetensors", "weights", { type: "file", accept: ".safetensors", required: true }),
      field("Activate it", "activate", { choices: ["at once", "later"] }),
    ];
    return form("Put the adapter", fields, async ({ name, config, weights, activate }, made) => {
      const sending = made.querySelector("button");
      sending.disabled = true;
      try {
        const query = activate === "at once" ? "" : "?activate=false";
        const files = { "adapter_config.json": config, "adapter_model.safetensors": weights };
        await this.api.upload(`${this.path}/${encodeURIComponent(name)}${query}`, files);
      } finally {
        sending.disabled = false;
      }
      await this.changed();
    });
  }
}

function textsOf({ name, version, pinned, engine, ...one }) {
  return [
    name, String(version), pinned ? "yes" : "no", sizeOf(one), placeOf({ engine }),
    engine ? `${engine.uses}×` : "–", engine?.used_at ? momentOf(engine.used_at) : "–",
    secondsOf(engine?.fetch_seconds), secondsOf(engine?.load_seconds),
  ];
}

function sizeOf({ bytes }) { return `${(bytes / MEBIBYTE).toFixed(1)} MiB`; }

// It is in the store in any case.
function placeOf({ engine }) { return engine === null ? "–" : engine.where.join(", ") || "store"; }

function momentOf(time) { return time.replace("T", " ").slice(0, 19); }

function secondsOf(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  return seconds < 1 ? `${(1000 * seconds).toFixed(1)} ms` : `${seconds.toFixed(2)} s`;
}
