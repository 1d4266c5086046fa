// What a conversation's answers are asked with: a form, and the fields of a request that it means.

import { fill } from "../dom.js";

const MARKUP = `
<summary>Settings of this conversation</summary>
<div class="fields">
<label>Model, or with an adapter: model:name <input name="model" list="models" autocomplete="off"></label>
<label>and beside it <input name="beside" list="models" autocomplete="off"></label>
<datalist id="models"></datalist>
<label>System text <textarea name="instructions" rows="2"></textarea></label>
<label>or a registered prompt <input name="prompt" list="prompts" autocomplete="off"></label>
<datalist id="prompts"></datalist>
<label>The prompt's variables, as JSON <textarea name="variables" rows="1" spellcheck="false"></textarea></label>
<label>Temperature <input name="temperature" type="number" min="0" max="2" step="0.1"></label>
<label>Output tokens <input name="tokens" type="number" min="1" step="1"></label>
<label>Tools, as JSON <textarea name="tools" rows="3" spellcheck="false"></textarea></label>
<label>Schema of the answer <textarea name="schema" rows="3" spellcheck="false"></textarea></label>
</div>`;

// That of `partywall chat`: small models ramble at 1.
const USUAL = { temperature: "0.6" };

export class Settings {
  constructor(element) {
    fill(element, MARKUP);
    this.element = element;
  }

  field(name) { return this.element.querySelector(`[name=${name}]`); }

  // What there is for a field to be chosen from.
  offer(list, names) {
    const options = names.map((name) => Object.assign(document.createElement("option"), { value: name }));
    this.element.querySelector(`#${list}`).replaceChildren(...options);
  }

  get values() {
    const fields = [...this.element.querySelectorAll("[name]")];
    return Object.fromEntries(fields.map(({ name, value }) => [name, value]));
  }

  set values(values) {
    for (const field of this.element.querySelectorAll("[name]")) {
      field.value = values[field.name] ?? USUAL[field.name] ?? "";
    }
  }

  // Whether two models are compared.
  get isComparison() { return !this.field("beside").parentElement.hidden; }

  set isComparison(isIt) { this.field("beside").parentElement.hidden = !isIt; }

  // The fields of a request, at a conversation's beginning or behind it; `named` is the field that
  // has its model. Throws for what is no JSON, and where one of two models is not named.
  request(isFirst, named) {
    const { instructions, prompt, variables, temperature, tokens, tools, schema, [named]: model } = this.values;
    if (this.isComparison && !model) throw new Error("Name two models in the settings: they are compared.");
    const body = {};
    if (model) body.model = model;
    if (isFirst && instructions) body.instructions = instructions;
    if (isFirst && prompt && !instructions) {
      body.prompt = { id: prompt };
      if (variables) body.prompt.variables = parsed("Variables", variables);
    }
    if (temperature) body.temperature = Number(temperature);
    if (tokens) body.max_output_tokens = Number(tokens);
    if (tools) body.tools = [parsed("Tools", tools)].flat();
    if (schema) {
      const format = { type: "json_schema", name: "answer", schema: parsed("Schema", schema) };
      body.text = { format };
    }
    return body;
  }
}

function parsed(what, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what}: ${error.message}`);
  }
}
