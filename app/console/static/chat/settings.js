// What a conversation's answers are asked with: a form, and the fields of a request that it means.

import { fill, make, part } from "../dom.js";

/**
 * @typedef {Record<string, any>} Values of the fields by name; `variables` has those of the prompt
 * @typedef {{ id: string, variables: string[] }} Prompt
 */

const MARKUP = `
<summary>Settings of this conversation</summary>
<div class="fields">
<label>Model <select name="model"></select></label>
<label>and beside it <select name="beside"></select></label>
<label>Begins with <select name="prompt"></select></label>
<label>System text <textarea name="instructions" rows="2"></textarea></label>
<fieldset class="variables" hidden><legend>What the prompt leaves open</legend></fieldset>
<div class="pair">
<label>Temperature <input name="temperature" type="number" min="0" max="2" step="0.1"></label>
<label>Output tokens <input name="tokens" type="number" min="1" step="1" placeholder="as the service has it"></label>
</div>
<details class="developers"><summary>Tools and formats</summary>
<label>Tools, as JSON <textarea name="tools" rows="3" spellcheck="false"></textarea></label>
<label>Schema of the answer <textarea name="schema" rows="3" spellcheck="false"></textarea></label>
</details>
</div>`;
const NAMES = ["model", "beside", "prompt", "instructions", "temperature", "tokens", "tools", "schema"];

// That of `partywall chat`: small models ramble at 1.
/** @type {Record<string, string>} */
const USUAL = { temperature: "0.6" };
export const BASE = ":"; // the served model with no adapter, not even the tenant's own
const OWN_TEXT = "A text of one's own, or none";

export class Settings {
  /** @param {HTMLDetailsElement} element */
  constructor(element) {
    fill(element, MARKUP);
    this.element = element;
    /** @type {Prompt[]} */
    this.prompts = [];
    /** @type {Values} */
    this.given = {}; // of the prompt's variables
    this.field("prompt").addEventListener("change", () => this.lay());
    this.offer("model", [["", "As the tenant has it"]]);
    this.offer("beside", [["", "Choose one"]]);
    this.offer("prompt", [["", OWN_TEXT]]);
  }

  /** @param {string} name */
  field(name) { return part(this.element, `[name=${name}]`); }

  // What there is for a field to be chosen from: values, and what they are called.
  /** @param {string} name @param {string[][]} choices */
  offer(name, choices) {
    const select = this.field(name);
    const { value } = select;
    select.replaceChildren(...choices.map(([one, called]) => new Option(called, one)));
    this.choose(select, value);
  }

  /** @param {string[]} models names, of which the first is the served one's and the others have adapters */
  offerModels(models) {
    const named = models.map((name) => [name, name]);
    const base = [[BASE, "The base, with no adapter"]];
    this.offer("model", [["", "As the tenant has it"], ...base, ...named]);
    this.offer("beside", [["", "Choose one"], ...base, ...named]);
  }

  /** @param {Prompt[]} prompts */
  offerPrompts(prompts) {
    this.prompts = prompts;
    this.offer("prompt", [["", OWN_TEXT], ...prompts.map(({ id }) => [id, id])]);
    this.lay();
  }

  // What was chosen once and is not offered, or not yet, stays chosen.
  /** @param {HTMLSelectElement} select @param {string} value */
  choose(select, value) {
    if (![...select.options].some((option) => option.value === value)) select.append(new Option(value, value));
    select.value = value;
  }

  // A field for each variable of the prompt that is chosen, or one for a text.
  lay() {
    const { value } = this.field("prompt");
    const { variables = [] } = this.prompts.find(({ id }) => id === value) ?? {};
    this.field("instructions").parentElement.hidden = value !== "";
    const set = part(this.element, ".variables");
    set.hidden = variables.length === 0;
    set.replaceChildren(set.firstElementChild, ...variables.map((name) => {
      const label = make("label", "", `${name} `);
      const input = Object.assign(make("input"), { value: this.given[name] ?? "", autocomplete: "off" });
      input.addEventListener("input", () => { this.given = { ...this.given, [name]: input.value }; });
      label.append(input);
      return label;
    }));
  }

  /** @returns {Values} */
  get values() {
    return { ...Object.fromEntries(NAMES.map((name) => [name, this.field(name).value])), variables: this.given };
  }

  set values(values) {
    for (const name of NAMES) {
      const field = this.field(name);
      const value = values[name] ?? USUAL[name] ?? "";
      if (field instanceof HTMLSelectElement) this.choose(field, value);
      else field.value = value;
    }
    this.given = values.variables ?? {};
    this.lay();
  }

  // Whether two models are compared.
  get isComparison() { return !this.field("beside").parentElement.hidden; }

  set isComparison(isIt) { this.field("beside").parentElement.hidden = !isIt; }

  // The fields of a request, at a conversation's beginning or behind it; `named` is the field that
  // has its model. Throws for what is no JSON or missing, and where one of two models is not named.
  /** @param {boolean} isFirst @param {string} named */
  request(isFirst, named) {
    const { instructions, prompt, temperature, tokens, tools, schema, [named]: model } = this.values;
    if (this.isComparison && !model) throw new Error("Name two models in the settings: they are compared.");
    /** @type {Record<string, any>} */
    const body = {};
    if (model) body.model = model;
    if (isFirst && prompt) body.prompt = this.prompt(prompt);
    else if (isFirst && instructions) body.instructions = instructions;
    if (temperature) body.temperature = Number(temperature);
    if (tokens) body.max_output_tokens = Number(tokens);
    if (tools) body.tools = [parsed("Tools", tools)].flat();
    if (schema) {
      const format = { type: "json_schema", name: "answer", schema: parsed("Schema", schema) };
      body.text = { format };
    }
    return body;
  }

  /** @param {string} id */
  prompt(id) {
    const { variables = [] } = this.prompts.find((one) => one.id === id) ?? {};
    const missing = variables.find((name) => !this.given[name]?.trim());
    if (missing) throw new Error(`Fill in ${missing} in the settings: the prompt needs it.`);
    if (variables.length === 0) return { id };
    return { id, variables: Object.fromEntries(variables.map((name) => [name, this.given[name]])) };
  }
}

// What stands over the answers of a model that is named so.
/** @param {string} model */
export function titleOf(model) {
  if (model === "") return "Not chosen yet";
  return model.endsWith(BASE) ? "The base" : model;
}

/** @param {string} what @param {string} text */
function parsed(what, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what}: ${error.message}`, { cause: error });
  }
}
