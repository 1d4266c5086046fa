// What there is on the wall, in numbers: by kind or owner, with the colours that tell it.

import { entry, put } from "../dom.js";
import { KINDS } from "./picture.js";
import { MOST_OWNERS, counted, kindInWords, number, summary } from "./words.js";

const RARE = ["state", "on-disk"]; // kinds that are told where there are any

export class Legend {
  /**
   * @param {HTMLElement} list @param {HTMLElement} text
   * @param {HTMLSelectElement} chooser of an owner
   * @param {import("./picture.js").Picture} picture
   */
  constructor(list, text, chooser, picture) {
    this.list = list;
    this.text = text;
    this.chooser = chooser;
    this.picture = picture;
  }

  /** @param {number} onDisk blocks there */
  draw(onDisk) {
    const { picture, picture: { cells } } = this;
    const { kinds, owners } = counted(cells);
    kinds[KINDS.length - 1] = onDisk;
    const entries = picture.byOwner
      ? owners.slice(0, MOST_OWNERS).map(([name, count, index]) => entry(name || "nobody", picture.cssOf(index), number(count)))
      : KINDS.map((kind, index) => entry(kindInWords(index), `var(--${kind})`, number(kinds[index])));
    if (!picture.byOwner) {
      for (const kind of RARE) entries[KINDS.indexOf(kind)].hidden = kinds[KINDS.indexOf(kind)] === 0;
    }
    this.list.replaceChildren(...entries);
    this.offer(owners);
    put(this.text, summary(cells, kinds, owners));
  }

  /**
   * Let one of the owners be chosen.
   * @param {import("./words.js").Owned[]} owners
   */
  offer(owners) {
    const known = new Set([...this.chooser.options].map((option) => option.value));
    for (const [name] of owners) {
      if (name !== "" && !known.has(name)) this.chooser.add(new Option(name));
    }
  }
}
