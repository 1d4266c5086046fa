// Vercel's AI SDK: the examples of its guides, through each of the providers that reach this service.

import assert from "node:assert/strict";
import { test } from "node:test";

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import {
  generateObject,
  generateText,
  Output,
  stepCountIs,
  streamObject,
  streamText,
  tool,
  ToolLoopAgent,
} from "ai";
import { z } from "zod";

const name = process.env.SUITE_MODEL;
const baseURL = process.env.OPENAI_BASE_URL;
const apiKey = process.env.OPENAI_API_KEY;
const openai = createOpenAI({ baseURL, apiKey });
const anthropic = createAnthropic({ baseURL: `${process.env.ANTHROPIC_BASE_URL}/v1` });
const compatible = createOpenAICompatible({
  name: "partywall",
  baseURL,
  apiKey,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const models = {
  openai: openai(name),
  "openai.chat": openai.chat(name),
  "openai-compatible": compatible.chatModel(name),
  anthropic: anthropic(name),
};

const person = z.object({
  name: z.string().max(20),
  age: z.number().int().nullable(),
  labels: z.array(z.string().max(20)).max(3),
});
const weather = tool({
  description: "Get the weather in a location",
  inputSchema: z.object({ location: z.string().describe("The location to get the weather for") }),
  execute: async ({ location }) => ({ location, temperature: 72 }),
});
const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const asked = "What is the weather in San Francisco?";

async function gathered(parts) {
  const found = [];
  for await (const part of parts) found.push(part);
  return found;
}

for (const [provider, model] of Object.entries(models)) {
  test(`${provider}: generateText`, async () => {
    const { text, usage } = await generateText({ model, prompt: "What is an agent?" });
    assert.ok(text);
    assert.ok(usage.outputTokens);
  });

  test(`${provider}: streamText`, async () => {
    const result = streamText({
      model,
      prompt: "Invent a new holiday and describe its traditions.",
      onError: ({ error }) => assert.fail(error),
    });
    assert.equal((await gathered(result.textStream)).join(""), await result.text);
    assert.ok((await result.usage).outputTokens);
  });

  test(`${provider}: a picture`, async () => {
    const content = [
      { type: "text", text: "Describe the image." },
      { type: "image", image: Buffer.from(pixel, "base64") },
    ];
    const { text } = await generateText({ model, messages: [{ role: "user", content }] });
    assert.ok(text);
  });

  test(`${provider}: three turns`, async () => {
    const messages = [{ role: "system", content: "You are a helpful assistant." }];
    for (const content of ["Hello!", "Tell me a joke.", "Explain it."]) {
      messages.push({ role: "user", content });
      const { text, response } = await generateText({ model, messages });
      assert.ok(text);
      messages.push(...response.messages);
    }
  });

  test(`${provider}: Output.object`, async () => {
    const { output } = await generateText({
      model,
      output: Output.object({ schema: person }),
      prompt: "Describe Ada Lovelace, who was 36 years old.",
    });
    assert.ok(person.parse(output));
  });

  test(`${provider}: Output.object, streamed`, async () => {
    const result = streamText({
      model,
      output: Output.object({ schema: person }),
      prompt: "Describe Ada Lovelace, who was 36 years old.",
      onError: ({ error }) => assert.fail(error),
    });
    assert.ok((await gathered(result.partialOutputStream)).length > 1);
    assert.ok(person.parse(await result.output));
  });

  test(`${provider}: Output.choice`, async () => {
    const { output } = await generateText({
      model,
      output: Output.choice({ options: ["action", "comedy", "drama", "horror", "sci-fi"] }),
      prompt: "Classify the genre of this movie plot: astronauts travel through a wormhole.",
    });
    assert.ok(output);
  });

  test(`${provider}: generateObject`, async () => {
    const { object } = await generateObject({ model, schema: person, prompt: "Describe Ada." });
    assert.ok(person.parse(object));
  });

  test(`${provider}: streamObject`, async () => {
    const result = streamObject({ model, schema: person, prompt: "Describe Ada." });
    await gathered(result.partialObjectStream);
    assert.ok(person.parse(await result.object));
  });

  test(`${provider}: tools, until the answer`, async () => {
    const result = await generateText({
      model,
      tools: { weather },
      stopWhen: stepCountIs(5),
      prompt: asked,
    });
    assert.equal(result.steps[0].toolCalls[0].toolName, "weather");
    assert.ok(result.text);
  });

  test(`${provider}: tools, streamed`, async () => {
    const result = streamText({
      model,
      tools: { weather },
      stopWhen: stepCountIs(5),
      prompt: asked,
      onError: ({ error }) => assert.fail(error),
    });
    const types = (await gathered(result.fullStream)).map((part) => part.type);
    for (const type of ["tool-input-delta", "tool-call", "tool-result", "text-delta"]) {
      assert.ok(types.includes(type), `${type} in ${[...new Set(types)]}`);
    }
  });

  test(`${provider}: tools, a second turn`, async () => {
    const messages = [{ role: "user", content: asked }];
    const settings = { model, tools: { weather }, stopWhen: stepCountIs(5) };
    messages.push(...(await generateText({ ...settings, messages })).response.messages);
    messages.push({ role: "user", content: "And in Paris?" });
    assert.ok((await generateText({ ...settings, messages })).text);
  });

  test(`${provider}: tools required, strict`, async () => {
    const { toolCalls } = await generateText({
      model,
      tools: { weather: tool({ ...weather, strict: true }) },
      toolChoice: "required",
      prompt: asked,
    });
    assert.ok(toolCalls[0].input.location !== undefined);
  });

  test(`${provider}: one tool named`, async () => {
    const { toolCalls } = await generateText({
      model,
      tools: { weather },
      toolChoice: { type: "tool", toolName: "weather" },
      prompt: asked,
    });
    assert.equal(toolCalls[0].toolName, "weather");
  });

  test(`${provider}: agent`, async () => {
    const agent = new ToolLoopAgent({ model, instructions: "Be brief.", tools: { weather } });
    assert.ok((await agent.generate({ prompt: asked })).text);
  });
}

test("openai-compatible: completions", async () => {
  const { text } = await generateText({
    model: compatible.completionModel(name),
    prompt: "The capital of France is",
    maxOutputTokens: 8,
  });
  assert.ok(text);
});

test("openai: what was said is not stored, and comes back encrypted", async () => {
  const options = { store: false, include: ["reasoning.encrypted_content"] };
  const messages = [{ role: "user", content: "Hello!" }];
  const settings = { model: models.openai, providerOptions: { openai: options } };
  messages.push(...(await generateText({ ...settings, messages })).response.messages);
  messages.push({ role: "user", content: "Tell me a joke." });
  assert.ok((await generateText({ ...settings, messages })).text);
});

test("anthropic: a marked prompt is found again", async () => {
  const rules = `${crypto.randomUUID()}: ${"Read before you write. ".repeat(60)}`;
  const providerOptions = { anthropic: { cacheControl: { type: "ephemeral" } } };
  const messages = [
    { role: "system", content: rules, providerOptions },
    { role: "user", content: "Hello!" },
  ];
  const model = models.anthropic;
  const first = await generateText({ model, messages });
  assert.ok(first.usage.inputTokenDetails.cacheWriteTokens);
  const second = await generateText({ model, messages });
  assert.ok(second.usage.inputTokenDetails.cacheReadTokens);
});

test("anthropic: thinking", async () => {
  const thinking = { type: "enabled", budgetTokens: 1024 };
  const settings = { model: models.anthropic, providerOptions: { anthropic: { thinking } } };
  const messages = [{ role: "user", content: "Hello!" }];
  messages.push(...(await generateText({ ...settings, messages })).response.messages);
  messages.push({ role: "user", content: "Tell me a joke." });
  assert.ok((await generateText({ ...settings, messages })).text);
});
