// `@anthropic-ai/sdk` for TypeScript: the examples of its README and its helpers' guide.

import assert from "node:assert/strict";
import { test } from "node:test";

import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";

const model = process.env.SUITE_MODEL;
const client = new Anthropic({ timeout: 300_000 });

const hello = [{ role: "user", content: "Hello, Claude" }];
const asked = [{ role: "user", content: "What is the weather in San Francisco?" }];
const settings = { model, max_tokens: 300 };
const weather = {
  name: "get_weather",
  description: "Get the current weather in a given location",
  input_schema: {
    type: "object",
    properties: { location: { type: "string" } },
    required: ["location"],
  },
};
const runnable = betaZodTool({
  name: "get_weather",
  description: "Get the current weather in a given location",
  inputSchema: z.object({ location: z.string() }),
  run: ({ location }) => `It is sunny in ${location}.`,
});
const Contact = z.object({ name: z.string(), email: z.string(), demo: z.boolean() });
const asksForContact = [
  { role: "user", content: "Extract: John Smith (john@example.com) wants a demo on Tuesday." },
];

test("message", async () => {
  const message = await client.messages.create({ ...settings, messages: hello });
  assert.ok(message.content[0].text);
  assert.equal(message.stop_reason, "end_turn");
  assert.ok(message.usage.output_tokens);
});

test("streamed events", async () => {
  const stream = await client.messages.create({ ...settings, messages: hello, stream: true });
  const types = [];
  for await (const event of stream) types.push(event.type);
  assert.equal(types[0], "message_start");
  assert.equal(types.at(-1), "message_stop");
});

test("stream helper", async () => {
  let text = "";
  const stream = client.messages.stream({ ...settings, messages: hello });
  stream.on("text", (delta) => (text += delta));
  const message = await stream.finalMessage();
  assert.equal(message.content[0].text, text);
  assert.ok(message.usage.output_tokens);
});

test("a stream that is left", async () => {
  const stream = client.messages.stream({ ...settings, messages: hello });
  stream.on("text", () => stream.abort());
  await assert.rejects(stream.done(), Anthropic.APIUserAbortError);
  assert.ok((await client.messages.create({ ...settings, messages: hello })).content[0].text);
});

test("several turns", async () => {
  const messages = [...hello];
  for (const content of ["Tell me a joke.", "Explain it."]) {
    const said = await client.messages.create({ ...settings, messages, system: "Be brief." });
    messages.push({ role: "assistant", content: said.content }, { role: "user", content });
  }
  assert.ok((await client.messages.create({ ...settings, messages })).content[0].text);
});

test("a call and its result", async () => {
  const tools = [weather];
  const message = await client.messages.create({ ...settings, messages: asked, tools });
  assert.equal(message.stop_reason, "tool_use");
  const use = message.content.find((block) => block.type === "tool_use");
  const result = { type: "tool_result", tool_use_id: use.id, content: "15 degrees" };
  const messages = [
    ...asked,
    { role: "assistant", content: message.content },
    { role: "user", content: [result] },
  ];
  const answer = await client.messages.create({ ...settings, messages, tools });
  assert.ok(answer.content[0].text);
});

test("a streamed call", async () => {
  const tools = [{ ...weather, eager_input_streaming: true }];
  const stream = client.messages.stream({
    ...settings,
    messages: asked,
    tools,
    tool_choice: { type: "any" },
  });
  let partial = "";
  stream.on("inputJson", (delta) => (partial += delta));
  const message = await stream.finalMessage();
  assert.deepEqual(JSON.parse(partial), message.content.at(-1).input);
});

test("toolRunner", async () => {
  const runner = client.beta.messages.toolRunner({
    ...settings,
    messages: asked,
    tools: [runnable],
  });
  const reasons = [];
  for await (const message of runner) reasons.push(message.stop_reason);
  assert.deepEqual(reasons, ["tool_use", "end_turn"]);
});

test("toolRunner, streamed", async () => {
  const runner = client.beta.messages.toolRunner({
    ...settings,
    messages: asked,
    tools: [runnable],
    stream: true,
  });
  const reasons = [];
  for await (const stream of runner) reasons.push((await stream.finalMessage()).stop_reason);
  assert.deepEqual(reasons, ["tool_use", "end_turn"]);
});

test("parse", async () => {
  const message = await client.messages.parse({
    ...settings,
    messages: asksForContact,
    output_config: { format: zodOutputFormat(Contact) },
  });
  assert.ok(Contact.parse(message.parsed_output));
});

test("parse, streamed", async () => {
  const stream = client.messages.stream({
    ...settings,
    messages: asksForContact,
    output_config: { format: zodOutputFormat(Contact) },
  });
  assert.ok(Contact.parse((await stream.finalMessage()).parsed_output));
});

for (const thinking of [{ type: "adaptive" }, { type: "enabled", budget_tokens: 1024 }]) {
  test(`thinking, ${thinking.type}`, async () => {
    const stream = client.messages.stream({ model, max_tokens: 2000, thinking, messages: hello });
    const message = await stream.finalMessage();
    assert.ok(message.content.at(-1).text);
    const messages = [...hello, { role: "assistant", content: message.content }, ...hello];
    assert.ok(await client.messages.create({ model, max_tokens: 2000, thinking, messages }));
  });
}

test("prompt caching", async () => {
  const rules = `${crypto.randomUUID()}: ${"Read before you write. ".repeat(60)}`;
  const system = [{ type: "text", text: rules, cache_control: { type: "ephemeral", ttl: "1h" } }];
  const { usage: first } = await client.messages.create({ ...settings, messages: hello, system });
  const { usage: second } = await client.messages.create({ ...settings, messages: hello, system });
  assert.ok(first.cache_creation.ephemeral_1h_input_tokens);
  assert.ok(second.cache_read_input_tokens >= first.cache_creation_input_tokens);
});

test("countTokens", async () => {
  const counted = await client.messages.countTokens({ model, messages: hello, system: "Hm." });
  const { usage } = await client.messages.create({ ...settings, messages: hello, system: "Hm." });
  assert.equal(counted.input_tokens, usage.input_tokens + usage.cache_read_input_tokens);
});

test("models", async () => {
  const ids = [];
  for await (const one of client.models.list()) ids.push(one.id);
  assert.ok(ids.includes(model));
  assert.ok((await client.models.retrieve(model)).max_tokens);
});

test("raw responses", async () => {
  const asking = client.messages.create({ ...settings, messages: hello });
  const { data, response, request_id } = await asking.withResponse();
  assert.ok(data.content[0].text);
  assert.equal(response.headers.get("request-id"), request_id);
});

test("errors", async () => {
  const refused = (fields) => client.messages.create({ ...settings, messages: hello, ...fields });
  await assert.rejects(refused({ temperature: 9 }), (error) => {
    assert.ok(error instanceof Anthropic.BadRequestError);
    assert.equal(error.error.error.type, "invalid_request_error");
    return error.message.includes("temperature");
  });
  await assert.rejects(refused({ model: "claude-none" }), Anthropic.NotFoundError);
  const stranger = new Anthropic({ apiKey: "pw_wrong.wrong" });
  await assert.rejects(stranger.models.list(), Anthropic.AuthenticationError);
});

test("what is not served is refused by name", async () => {
  const search = { type: "web_search_20250305", name: "web_search" };
  const asking = client.messages.create({ ...settings, messages: hello, tools: [search] });
  await assert.rejects(asking, /web_search_20250305/);
  await assert.rejects(client.messages.batches.list(), /Batches/);
});

test("a picture", async () => {
  const data = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
  const content = [
    { type: "image", source: { type: "base64", media_type: "image/png", data } },
    { type: "text", text: "Describe this image." },
  ];
  const message = await client.messages.create({ ...settings, messages: [{ role: "user", content }] });
  assert.ok(message.content[0].text);
});
