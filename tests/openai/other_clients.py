"""Run by another interpreter, with openai 2 and LiteLLM: ask a server as a user, print what came as JSON."""

from __future__ import annotations

import json
import sys

import litellm
import openai

url, model = sys.argv[1:]
messages = [{"role": "user", "content": "My dog is called what?"}]
client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
whole = client.chat.completions.create(model=model, messages=messages, user="alice")
counted = {"stream": True, "stream_options": {"include_usage": True}}
chunks = list(client.chat.completions.create(model=model, messages=messages, user="alice", **counted))
try:
    client.chat.completions.create(model=model, messages=messages, user=" alice")
    refused = ""
except openai.BadRequestError as error:
    refused = str(error.code)
reached = {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": "none"}
named = {"user": "alice", "allowed_openai_params": ["user"]}
lite = litellm.completion(messages=messages, **reached, **named)
lite_chunks = list(litellm.completion(messages=messages, stream=True, **reached, **named))
extension = {"inferscale": {"user_id": "alice"}}
extended = litellm.completion(messages=messages, extra_body=extension, **reached)
told = {
    "version": openai.__version__,
    "whole": whole.choices[0].message.content,
    "mode": whole.model_extra["inferscale"]["mode"],
    "streamed": "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices).strip(),
    "usage": chunks[-1].usage.completion_tokens,
    "refused": refused,
    "litellm_extended": extended.choices[0].message.content,
    "litellm": lite.choices[0].message.content,
    "litellm_streamed": "".join(chunk.choices[0].delta.content or "" for chunk in lite_chunks).strip(),
}
print(json.dumps(told))
