"""client.py models|plain|stream [MESSAGE...]: the library as its users use it,
with all of its defaults. It prints what came as one line of JSON."""
import json
import os
import sys

from openai import APIError, OpenAI

client = OpenAI(base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"])


def request(text):
    return {"model": "picket", "user": os.environ["CHAT"], "messages": [{"role": "user", "content": text}]}


def plain(text):
    r = client.chat.completions.create(**request(text))
    return {"text": r.choices[0].message.content, "tokens": r.usage.total_tokens}


def stream(text):
    pieces, tokens = [], 0
    for chunk in client.chat.completions.create(**request(text), stream=True, stream_options={"include_usage": True}):
        pieces += [c.delta.content for c in chunk.choices if c.delta.content]
        if chunk.usage:
            tokens = chunk.usage.total_tokens
    return {"text": "".join(pieces), "tokens": tokens, "pieces": len(pieces)}


result = {"replies": []}
try:
    if sys.argv[1] == "models":
        result["models"] = [m.id for m in client.models.list()]
    for message in sys.argv[2:]:
        result["replies"].append({"plain": plain, "stream": stream}[sys.argv[1]](message))
except APIError as e:
    result["error"] = {"status": getattr(e, "status_code", 0), "code": e.code, "message": e.message}
print(json.dumps(result))
