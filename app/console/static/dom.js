// Elements as views make them.

/** @typedef {Record<string, any> & { choices?: string[], tag?: string }} FieldOptions */

// The only markup and scripts that are taken as they are: what a module itself has written or named.
/** @type {{ createHTML(markup: string): string, createScriptURL(address: string): string } | undefined} */
const own = /** @type {any} */ (globalThis).trustedTypes?.createPolicy("partywall", {
  createHTML: (/** @type {string} */ markup) => markup,
  createScriptURL: (/** @type {string} */ address) => address,
});

/** @param {Element} element @param {string} markup */
export function fill(element, markup) {
  element.innerHTML = own?.createHTML(markup) ?? markup;
}

// A module that runs beside the page; `address` is one of the page's own.
/** @param {URL} address @returns {Worker} */
export function beside(address) {
  return new Worker(own?.createScriptURL(address.href) ?? address, { type: "module" });
}

// What such markup has for sure, of whichever kind it is there.
/** @param {ParentNode} element @param {string} selector @returns {any} */
export function part(element, selector) {
  const found = element.querySelector(selector);
  if (found === null) throw new Error(`There is no ${selector}.`);
  return found;
}

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function make(tag, name = "", text = "") {
  return Object.assign(document.createElement(tag), { className: name, textContent: text });
}

/** @param {string} text @param {() => void} pressed */
export function button(text, pressed) {
  const element = make("button", "", text);
  element.type = "button";
  element.addEventListener("click", () => pressed());
  return element;
}

// Puts a text into the clipboard, where there is one: browsers have none on pages that came over
// plain HTTP from another machine.
/** @param {string} what @param {() => string} text */
export function copier(what, text) {
  const element = button("Copy", async () => {
    await navigator.clipboard.writeText(text());
    put(element, "Copied");
    setTimeout(() => put(element, "Copy"), 2000);
  });
  element.ariaLabel = `Copy ${what}`;
  element.hidden = navigator.clipboard === undefined;
  return element;
}

// Another text, where it is another.
/** @param {Element} element @param {string} text */
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Has the page be dressed by a style sheet, too, from when this is fulfilled on.
/** @param {URL} place @returns {Promise<void>} */
export function dressed(place) {
  const { href } = place;
  if ([...document.styleSheets].some((sheet) => sheet.href === href)) return Promise.resolve();
  return new Promise((resolve, reject) => {
    const link = Object.assign(make("link"), { rel: "stylesheet", href });
    link.addEventListener("load", () => resolve());
    link.addEventListener("error", reject);
    document.head.append(link);
  });
}

// An entry of a legend: a colour, its name, and a value.
/** @param {string} name @param {string} colour */
export function entry(name, colour, value = "") {
  const item = make("li");
  const swatch = make("i", "swatch");
  swatch.style.background = colour;
  item.append(swatch, `${name} `, make("b", "", value));
  return item;
}

/** @param {number} ms @returns {Promise<void>} */
export const rest = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

// Something to do, of which it is told what goes wrong.
/** @param {(error: Error) => void} tell @param {() => unknown} work */
export const tried = (tell, work) => async () => {
  try {
    await work();
  } catch (error) {
    tell(error);
  }
};

// A button for what cannot be taken back: it asks once more before it does it.
/** @param {string} text @param {() => void} pressed */
export function grave(text, pressed) {
  const element = button(text, () => {
    const isFirst = element.textContent === text;
    element.textContent = isFirst ? `Really ${text.toLowerCase()}?` : text;
    if (!isFirst) pressed();
  });
  element.addEventListener("blur", () => { element.textContent = text; });
  return element;
}

// A labelled field; `options` are those of the element, or a list to choose from.
/** @param {string} label @param {string} name @param {FieldOptions} options */
export function field(label, name, options = {}) {
  const { choices, tag = choices ? "select" : "input", ...others } = options;
  const element = document.createElement(tag);
  if (choices) element.append(...choices.map((choice) => new Option(choice)));
  Object.assign(element, { name, autocomplete: "off", ...others });
  const outer = make("label", "", `${label} `);
  outer.append(element);
  return outer;
}

// A form that is sent without leaving the page; what goes wrong is told below it.
/**
 * @param {string} title
 * @param {Element[]} fields
 * @param {(values: Record<string, any>, form: HTMLFormElement) => unknown} sent
 */
export function form(title, fields, sent) {
  const element = make("form", "fields");
  const told = make("p", "problem");
  told.setAttribute("role", "alert");
  element.append(...fields, make("button", "", title), told);
  element.addEventListener("submit", async (event) => {
    event.preventDefault();
    told.textContent = "";
    try {
      await sent(Object.fromEntries(new FormData(element)), element);
    } catch (error) {
      told.textContent = error.message;
    }
  });
  return element;
}

// A table that scrolls by itself where it is too wide.
/** @param {string} label @param {string[]} columns */
export function table(label, columns) {
  const region = make("div", "scroll");
  Object.assign(region, { tabIndex: 0, ariaLabel: label, role: "region" });
  const element = make("table");
  const head = element.createTHead().insertRow();
  for (const column of columns) {
    const cell = make("th", "", column);
    cell.scope = "col";
    head.append(cell);
  }
  region.append(element);
  return { region, body: element.createTBody() };
}

// A row of texts, elements, and lists of elements.
/**
 * @typedef {Node | string | number | null | undefined} Content
 * @param {HTMLTableSectionElement} body
 * @param {(Content | Content[])[]} cells
 */
export function row(body, cells) {
  const element = body.insertRow();
  for (const cell of cells) {
    const contents = /** @type {(Node | string)[]} */ ([cell ?? ""].flat());
    element.insertCell().append(...contents);
  }
  return element;
}
