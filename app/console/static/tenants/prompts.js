// The system prompts of a tenant or a share group.

import { button, field, form, grave, row, table, tried } from "../dom.js";

export async function promptsOf(api, owner, changed, tell) {
  const path = `${owner}/prompts`;
  const { prompts } = await api.read(`${path}?limit=1000`);
  const columns = ["Prompt", "Version", "Tokens", "Blocks", "Pinned", "Actions"];
  const { region, body } = table("System prompts", columns);
  const doing = (method, name, suffix) => tried(tell, async () => {
    await api.send(method, `${path}/${name}${suffix}`);
    await changed();
  });
  const fields = [
    field("Name", "name", { required: true }),
    field("Text", "text", { tag: "textarea", rows: 4, required: true }),
  ];
  const putting = form("Put", fields, async ({ name, text }) => {
    await api.send("PUT", `${path}/${encodeURIComponent(name)}`, { text });
    await changed();
  });
  for (const prompt of prompts) {
    const edit = tried(tell, async () => {
      const { text } = await api.read(`${path}/${prompt.name}`);
      putting.elements.name.value = prompt.name;
      putting.elements.text.value = text;
      putting.elements.text.focus();
    });
    const hands = [
      button("Text", edit),
      button(prompt.pinned ? "Unpin" : "Pin", doing("POST", prompt.name, prompt.pinned ? "/unpin" : "/pin")),
      grave("Delete", doing("DELETE", prompt.name, "")),
    ];
    if (prompt.blocks === null) hands.push(button("Warm", doing("POST", prompt.name, "/warm")));
    row(body, [
      prompt.name, prompt.version, prompt.tokens ?? "not warm", prompt.blocks,
      prompt.pinned ? "yes" : "no", hands,
    ]);
  }
  return [region, putting];
}
