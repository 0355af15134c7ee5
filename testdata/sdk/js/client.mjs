// node client.mjs LIBRARY models|plain|stream [MESSAGE…]: one library as its users use it, with all
// of its defaults. It prints what came as one line of JSON.
const [library, what, ...messages] = process.argv.slice(2);
const { BASE_URL: baseURL, API_KEY: apiKey, CHAT: user } = process.env;

const libraries = {
  async openai() {
    const { default: OpenAI } = await import("openai");
    const client = new OpenAI({ baseURL, apiKey });
    const request = (content) => ({ model: "picket", user, messages: [{ role: "user", content }] });
    return {
      models: async () => (await client.models.list()).data.map((m) => m.id),
      async plain(content) {
        const r = await client.chat.completions.create(request(content));
        return { text: r.choices[0].message.content, tokens: r.usage.total_tokens };
      },
      async stream(content) {
        const s = client.chat.completions.stream({ ...request(content), stream_options: { include_usage: true } });
        let pieces = 0;
        s.on("content", () => pieces++);
        const r = await s.finalChatCompletion();
        return { text: r.choices[0].message.content, tokens: r.usage.total_tokens, pieces };
      },
    };
  },

  async ai() {
    const { createOpenAICompatible } = await import("@ai-sdk/openai-compatible");
    const { generateText, streamText } = await import("ai");
    const picket = createOpenAICompatible({ name: "picket", baseURL, apiKey, includeUsage: true });
    const request = (prompt) => ({ model: picket("picket"), prompt, providerOptions: { picket: { user } } });
    return {
      async plain(prompt) {
        const r = await generateText(request(prompt));
        return { text: r.text, tokens: r.usage.totalTokens };
      },
      async stream(prompt) {
        let pieces = 0, failed;
        const r = streamText({ ...request(prompt), onError: ({ error }) => (failed = error) });
        let text = "";
        for await (const piece of r.textStream) {
          text += piece;
          pieces++;
        }
        if (failed) throw failed;
        return { text, tokens: (await r.usage).totalTokens, pieces };
      },
    };
  },

  async langchain() {
    const { ChatOpenAI } = await import("@langchain/openai");
    const model = new ChatOpenAI({ model: "picket", apiKey, user, configuration: { baseURL } });
    return {
      async plain(content) {
        const r = await model.invoke(content);
        return { text: r.content, tokens: r.usage_metadata.total_tokens };
      },
      async stream(content) {
        let all, pieces = 0;
        for await (const chunk of await model.stream(content)) {
          all = all ? all.concat(chunk) : chunk;
          pieces += chunk.content !== "";
        }
        return { text: all.content, tokens: all.usage_metadata.total_tokens, pieces };
      },
    };
  },

  async agents() {
    const { Agent, OpenAIProvider, Runner } = await import("@openai/agents");
    const modelProvider = new OpenAIProvider({ baseURL, apiKey, useResponses: false });
    const runner = new Runner({ modelProvider, tracingDisabled: true });
    const agent = new Agent({ name: "app", instructions: "Be brief.", model: "picket", modelSettings: { providerData: { user } } });
    const tokens = (r) => r.rawResponses.reduce((n, m) => n + m.usage.totalTokens, 0);
    return {
      async plain(content) {
        const r = await runner.run(agent, content);
        return { text: r.finalOutput, tokens: tokens(r) };
      },
      async stream(content) {
        const r = await runner.run(agent, content, { stream: true });
        let pieces = 0;
        for await (const _ of r.toTextStream()) pieces++;
        await r.completed;
        return { text: r.finalOutput, tokens: tokens(r), pieces };
      },
    };
  },
};

// describe finds what a library says of an error: each says it elsewhere.
function describe(e) {
  e = e.lastError ?? e;
  let body = e.error ?? {};
  try {
    body = JSON.parse(e.responseBody).error;
  } catch {}
  return { status: e.status ?? e.statusCode, code: e.code ?? body.code, message: String(e.message ?? e) };
}

const result = { replies: [] };
try {
  const client = await libraries[library]();
  if (what === "models") result.models = await client.models();
  for (const m of messages) result.replies.push(await client[what](m));
} catch (e) {
  result.error = describe(e);
}
console.log(JSON.stringify(result));
