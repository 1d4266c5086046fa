// `openai` for Node: the examples of its README and its helpers' guide.

import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI, { toFile } from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { ResponsesWS } from "openai/resources/responses/ws";
import { z } from "zod";

const model = process.env.SUITE_MODEL;
const client = new OpenAI({ timeout: 300_000 });

const CalendarEvent = z.object({
  name: z.string(),
  date: z.string(),
  participants: z.array(z.string()),
});
const asksForEvent = [
  { role: "system", content: "Extract the event information." },
  { role: "user", content: "Alice and Bob are going to a science fair on Friday." },
];

async function getWeather({ city }) {
  return { city, weather: "sunny" };
}

const weatherTool = {
  type: "function",
  function: {
    name: "getWeather",
    description: "Get the weather of a city",
    function: getWeather,
    parse: JSON.parse,
    parameters: {
      type: "object",
      properties: { city: { type: "string" } },
      required: ["city"],
      additionalProperties: false,
    },
  },
};

test("responses", async () => {
  const response = await client.responses.create({
    model,
    instructions: "You are a coding assistant that talks like a pirate",
    input: "Are semicolons optional in JavaScript?",
  });
  assert.ok(response.output_text);
});

test("chat completions", async () => {
  const completion = await client.chat.completions.create({
    model,
    messages: [
      { role: "developer", content: "Talk like a pirate." },
      { role: "user", content: "Are semicolons optional in JavaScript?" },
    ],
  });
  assert.ok(completion.choices[0].message.content);
});

test("streamed responses", async () => {
  const stream = await client.responses.create({
    model,
    input: 'Say "Sheep sleep deep" ten times fast!',
    stream: true,
  });
  const types = [];
  for await (const event of stream) types.push(event.type);
  assert.equal(types.at(-1), "response.completed");
});

test("stream helper of responses", async () => {
  const stream = client.responses.stream({ model, input: "Say hello." });
  let text = "";
  stream.on("response.output_text.delta", (event) => (text += event.delta));
  assert.equal((await stream.finalResponse()).output_text, text);
});

test("stream helper of chat completions", async () => {
  const stream = client.chat.completions.stream({
    model,
    messages: [{ role: "user", content: "Say this is a test" }],
    stream_options: { include_usage: true },
  });
  let text = "";
  stream.on("content", (delta) => (text += delta));
  assert.equal(await stream.finalContent(), text);
  assert.ok((await stream.totalUsage()).completion_tokens);
});

test("two turns by the output itself", async () => {
  const history = [{ role: "user", content: "Tell me a joke" }];
  const response = await client.responses.create({ model, input: history });
  history.push(...response.output, { role: "user", content: "Tell me another" });
  assert.ok((await client.responses.create({ model, input: history })).output_text);
});

test("two turns by the previous response", async () => {
  const first = await client.responses.create({ model, input: "Tell me a joke" });
  const second = await client.responses.create({
    model,
    previous_response_id: first.id,
    input: "Explain why this is funny.",
  });
  assert.ok(second.output_text);
});

test("parse of responses", async () => {
  const response = await client.responses.parse({
    model,
    input: asksForEvent,
    text: { format: zodTextFormat(CalendarEvent, "event") },
  });
  assert.ok(CalendarEvent.parse(response.output_parsed));
});

test("parse of chat completions", async () => {
  const completion = await client.chat.completions.parse({
    model,
    messages: asksForEvent,
    response_format: zodResponseFormat(CalendarEvent, "event"),
  });
  assert.ok(CalendarEvent.parse(completion.choices[0].message.parsed));
});

test("parsed tools", async () => {
  const Query = z.object({ table: z.enum(["orders", "customers"]), limit: z.number().int() });
  const completion = await client.chat.completions.parse({
    model,
    messages: [{ role: "user", content: "look up all my orders in may of last year" }],
    tools: [zodFunction({ name: "query", parameters: Query })],
    tool_choice: "required",
  });
  assert.ok(Query.parse(completion.choices[0].message.tool_calls[0].function.parsed_arguments));
});

test("a custom tool and its result", async () => {
  const definition = "start: /[1-9]/ (/ [+] [1-9]/)~1..2";
  const format = { type: "grammar", syntax: "lark", definition };
  const tools = [{ type: "custom", name: "add", description: "Adds numbers.", format }];
  const stream = client.responses.stream({ model, input: "What is two plus three?", tools });
  let told = "";
  stream.on("event", (event) => {
    if (event.type === "response.custom_tool_call_input.delta") told += event.delta;
  });
  const first = await stream.finalResponse();
  const call = first.output.find((item) => item.type === "custom_tool_call");
  assert.match(call.input, /^[1-9]( [+] [1-9]){1,2}$/);
  assert.equal(told, call.input);
  const second = await client.responses.create({
    model,
    tools,
    previous_response_id: first.id,
    input: [{ type: "custom_tool_call_output", call_id: call.call_id, output: "5" }],
  });
  assert.ok(second.output_text);
});

test("runTools", async () => {
  const runner = client.chat.completions.runTools({
    model,
    messages: [{ role: "user", content: "How is the weather in Boston this week?" }],
    tools: [weatherTool],
  });
  const results = [];
  runner.on("functionToolCallResult", (result) => results.push(result));
  assert.ok(await runner.finalContent());
  assert.equal(results.length, 1);
});

test("runTools, streamed", async () => {
  const runner = client.chat.completions.runTools({
    model,
    stream: true,
    messages: [{ role: "user", content: "How is the weather in Boston this week?" }],
    tools: [weatherTool],
  });
  const calls = [];
  runner.on("functionToolCall", (call) => calls.push(call));
  assert.ok(await runner.finalContent());
  assert.equal(calls[0].name, "getWeather");
});

test("conversations", async () => {
  const conversation = await client.conversations.create({ metadata: { topic: "demo" } });
  for (const input of ["What are the 5 Ds of dodgeball?", "And the first one?"]) {
    await client.responses.create({ model, input, conversation: conversation.id });
  }
  const items = [];
  for await (const item of client.conversations.items.list(conversation.id)) items.push(item);
  assert.equal(items.length, 4);
  assert.ok((await client.conversations.delete(conversation.id)).deleted);
});

test("stored chat completions", async () => {
  const completion = await client.chat.completions.create({
    model,
    messages: [{ role: "user", content: "Say hello." }],
    store: true,
  });
  const stored = await client.chat.completions.retrieve(completion.id);
  assert.equal(stored.choices[0].message.content, completion.choices[0].message.content);
  assert.ok((await client.chat.completions.delete(completion.id)).deleted);
});

test("socket", async () => {
  const socket = new ResponsesWS(client);
  const ended = new Promise((resolve, reject) => {
    socket.on("response.completed", resolve);
    socket.on("error", reject);
  });
  socket.socket.on("open", () =>
    socket.send({ type: "response.create", model, input: "Say hello!" }),
  );
  assert.ok((await ended).response.output.length);
  socket.close();
});

test("errors", async () => {
  await assert.rejects(
    client.chat.completions.create({ model: "none", messages: [{ role: "user", content: "." }] }),
    OpenAI.NotFoundError,
  );
  await assert.rejects(client.responses.create({ model, input: "", temperature: 9 }), {
    status: 400,
    param: "temperature",
  });
});

test("models", async () => {
  const ids = [];
  for await (const one of client.models.list()) ids.push(one.id);
  assert.ok(ids.includes(model));
});

const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

test("a picture, and one by its id", async () => {
  const file = await client.files.create({
    file: await toFile(Buffer.from(pixel, "base64"), "pixel.png"),
    purpose: "vision",
  });
  for (const shown of [{ image_url: `data:image/png;base64,${pixel}` }, { file_id: file.id }]) {
    const content = [
      { type: "input_text", text: "What is in this image?" },
      { type: "input_image", detail: "auto", ...shown },
    ];
    const response = await client.responses.create({ model, input: [{ role: "user", content }] });
    assert.ok(response.output_text);
  }
  assert.ok((await client.files.delete(file.id)).deleted);
});
