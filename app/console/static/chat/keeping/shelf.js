// Where a browser keeps conversations: one IndexedDB for all who sign in, in which each tenant's lie apart.
// Turns are records of their own, so that two tabs do not overwrite each other's, and so are answers, which
// are written anew as they grow.

/**
 * @typedef {import("../said/conversation.js").Heading} Heading
 * @typedef {import("../said/tree.js").TurnRecord} TurnRecord
 * @typedef {{ id: string, isGone?: boolean }} Notice of a conversation that was changed
 */

const NAME = "partywall";
const HEADINGS = "conversations"; // by owner and id
const TURNS = "turns"; // by owner, conversation and id
const ANSWERS = "answers"; // as the turns
export const MOST = 200; // conversations of one owner

// All keys that begin so: an array is greater than any text.
/** @param {string[]} keys */
const beginning = (...keys) => IDBKeyRange.bound(keys, [...keys, []]);

export class Shelf {
  /** @param {IDBDatabase} database @param {string} owner @param {(notice: Notice) => void} changed */
  constructor(database, owner, changed) {
    this.database = database;
    this.owner = owner;
    this.others = new BroadcastChannel(`${NAME}.${owner}`); // the same tenant's tabs
    this.others.addEventListener("message", ({ data }) => changed(data));
  }

  // `changed` hears of what other tabs change. Throws where a browser keeps nothing.
  /** @param {string} owner @param {(notice: Notice) => void} changed */
  static async open(owner, changed) {
    const opening = indexedDB.open(NAME, 1);
    opening.addEventListener("upgradeneeded", () => {
      for (const name of [HEADINGS, TURNS, ANSWERS]) opening.result.createObjectStore(name);
    });
    return new Shelf(await done(opening), owner, changed);
  }

  /** @param {Notice} notice */
  tell(notice) {
    this.others.postMessage(notice); // oxlint-disable-line unicorn/require-post-message-target-origin -- windows have one
  }

  close() {
    this.others.close();
    this.database.close();
  }

  // Newest first.
  /** @returns {Promise<Heading[]>} */
  async headings() {
    const found = await this.all(HEADINGS, beginning(this.owner));
    return found.toSorted((one, other) => other.changedAt - one.changedAt);
  }

  /** @param {string} id @returns {Promise<Heading | undefined>} */
  heading(id) { return done(this.stores("readonly", HEADINGS)[0].get([this.owner, id])); }

  /** @param {string} id @returns {Promise<TurnRecord[]>} */
  async turns(id) {
    const range = beginning(this.owner, id);
    const [turns, answers] = await Promise.all([this.all(TURNS, range), this.all(ANSWERS, range)]);
    return turns.map((turn, index) => Object.assign(turn, { answer: answers[index] })); // in the order of their keys
  }

  // Change some of what is known of a conversation. What it is not told of stays as another tab has it, and what
  // another tab has deleted stays so.
  /** @param {string} id @param {Partial<Heading>} heading @param {boolean} isNew */
  async put(id, heading, isNew) {
    const [headings] = this.stores("readwrite", HEADINGS);
    const key = [this.owner, id];
    const known = await done(headings.get(key));
    if (known === undefined && !isNew) return;
    headings.put({ ...known, ...heading, id }, key);
    await written(headings);
    this.tell({ id });
  }

  /** @param {string} id @param {TurnRecord} record */
  async putTurn(id, { answer, ...turn }) {
    const [turns, answers] = this.stores("readwrite", TURNS, ANSWERS);
    const key = [this.owner, id, turn.id];
    turns.put(turn, key);
    answers.put(answer, key);
    await written(answers);
    this.tell({ id });
  }

  // `isTold` is whether other tabs are to look at it now: each follows a running answer by itself.
  /** @param {string} id @param {string} turn @param {TurnRecord["answer"]} answer @param {boolean} isTold */
  async putAnswer(id, turn, answer, isTold) {
    const key = [this.owner, id, turn];
    const [turns, answers] = this.stores("readwrite", TURNS, ANSWERS);
    if (await done(turns.getKey(key)) === undefined) return; // it was deleted meanwhile
    answers.put(answer, key);
    await written(answers);
    if (isTold) this.tell({ id });
  }

  /** @param {string} id */
  async remove(id) {
    const [headings, turns, answers] = this.stores("readwrite", HEADINGS, TURNS, ANSWERS);
    headings.delete([this.owner, id]);
    turns.delete(beginning(this.owner, id));
    answers.delete(beginning(this.owner, id));
    await written(answers);
    this.tell({ id, isGone: true });
  }

  // The ids of the conversations in which somebody says a text, whatever its case.
  /** @param {string} text @returns {Promise<Set<string>>} */
  async search(text) {
    const wanted = text.toLowerCase();
    const found = new Set();
    for (const name of [TURNS, ANSWERS]) {
      await each(this.stores("readonly", name)[0].openCursor(beginning(this.owner)), ([, id], record) => {
        if (saidIn(record).toLowerCase().includes(wanted)) found.add(id);
      });
    }
    return found;
  }

  /** @param {string} name @param {IDBKeyRange} range @returns {Promise<any[]>} */
  all(name, range) { return done(this.stores("readonly", name)[0].getAll(range)); }

  /** @param {IDBTransactionMode} mode @param {string[]} names */
  stores(mode, ...names) {
    const transaction = this.database.transaction(names, mode);
    return names.map((name) => transaction.objectStore(name));
  }
}

/** @template Result @param {IDBRequest<Result>} request @returns {Promise<Result>} */
function done(request) {
  return new Promise((resolve, reject) => {
    request.addEventListener("success", () => resolve(request.result));
    request.addEventListener("error", () => reject(request.error));
  });
}

// A full disk refuses no request, but all of their transaction at its end.
/** @param {IDBObjectStore} store @returns {Promise<unknown>} */
function written({ transaction }) {
  return new Promise((resolve, reject) => {
    transaction.addEventListener("complete", resolve);
    transaction.addEventListener("abort", () => reject(transaction.error));
  });
}

/** @param {IDBRequest<IDBCursorWithValue | null>} request @param {(key: string[], value: any) => void} heard @returns {Promise<void>} */
function each(request, heard) {
  return new Promise((resolve, reject) => {
    request.addEventListener("error", () => reject(request.error));
    request.addEventListener("success", () => {
      const cursor = request.result;
      if (cursor === null) {
        resolve();
        return;
      }
      heard(/** @type {string[]} */ (cursor.key), cursor.value);
      cursor.continue();
    });
  });
}

// What a turn or an answer says.
/** @param {{ text?: string, items?: { text?: string }[] }} record */
const saidIn = ({ text = "", items = [] }) => [text, ...items.map((item) => item?.text ?? "")].join("\n");
