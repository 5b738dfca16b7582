"""Chat templates of model families, written out as far as roles go, and rendered as transformers renders them.

`block` is what opens a system turn in the family's prompts; None for families that have no such turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Refused(Exception):
    """The template raised."""


@dataclass(frozen=True)
class Family:
    """One family's template and what tells its turns apart."""

    name: str
    template: str
    block: str | None
    seat: str = "system"
    bos: str = ""


LLAMA_3 = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\nToday Date: 26 Jul 2024\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"""

CHATML_WITH_DEFAULT = """{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) or message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{{- '<|im_start|>assistant\\n' }}"""

QWEN_3 = """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
        {{- '<|im_start|>assistant\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{{- '<|im_start|>assistant\\n' }}"""

MISTRAL_WITHOUT_SYSTEM = """{{ bos_token }}{% for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{%- if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{%- elif message['role'] == 'assistant' %}{{ message['content'] + '</s>' }}
{%- else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"""

MISTRAL_WITH_LATE_SYSTEM = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant") }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}{{- "[INST] " + message["content"] + "[/INST]" }}{%- endif %}
    {%- else %}{{- " " + message["content"] + "</s>" }}{%- endif %}
{%- endfor %}"""

MISTRAL_WITH_SYSTEM_PROMPT = """{{- bos_token }}{%- for message in messages %}
{%- if message["role"] == "system" %}
    {%- if not loop.first %}{{- raise_exception("Only the first message can be a system prompt.") }}{%- endif %}
    {{- "[SYSTEM_PROMPT]" + message["content"] + "[/SYSTEM_PROMPT]" }}
{%- elif message["role"] == "user" %}{{- "[INST]" + message["content"] + "[/INST]" }}
{%- else %}{{- message["content"] + "</s>" }}{%- endif %}{%- endfor %}"""

GEMMA_2 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}
{{- '<start_of_turn>model\\n' }}"""

GEMMA_3 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}{%- set loop_messages = messages[1:] -%}
{%- else -%}{%- set first_user_prefix = "" -%}{%- set loop_messages = messages -%}{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {{- message['content'] | trim }}{{ '<end_of_turn>\\n' }}
{%- endfor -%}
{{ '<start_of_turn>model\\n' }}"""

PHI_3 = """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}
{{- '<|system|>\\n' + message['content'] + '<|end|>\\n' }}{% elif message['role'] == 'user' %}
{{- '<|user|>\\n' + message['content'] + '<|end|>\\n' }}{% elif message['role'] == 'assistant' %}
{{- '<|assistant|>\\n' + message['content'] + '<|end|>\\n' }}{% endif %}{% endfor %}{{ '<|assistant|>\\n' }}"""

PHI_3_DEAF = """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}
{{- '<|user|>\\n' + message['content'] + '<|end|>\\n<|assistant|>\\n' }}{% elif message['role'] == 'assistant' %}
{{- message['content'] + '<|end|>\\n' }}{% endif %}{% endfor %}"""

PHI_4_MINI = """{% for message in messages %}
{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}{{ '<|assistant|>' }}"""

PHI_4 = """{% for message in messages %}{% if (message['role'] == 'system') %}
{{- '<|im_start|>system<|im_sep|>' + message['content'] + '<|im_end|>' }}{% elif (message['role'] == 'user') %}
{{- '<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>' }}{% elif (message['role'] == 'assistant') %}
{{- '<|im_start|>assistant<|im_sep|>' + message['content'] + '<|im_end|>' }}{% endif %}{% endfor %}
{{- '<|im_start|>assistant<|im_sep|>' }}"""

ONE_SYSTEM_ONLY = """{% for message in messages %}{% if message['role'] == 'system' and not loop.first %}
{{- raise_exception('System message must be at the beginning.') }}{% endif %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>\\n' }}{% endfor %}
{{- '<|im_start|>assistant\\n' }}"""

FAMILIES = (
    Family("llama-3", LLAMA_3, "<|start_header_id|>system<|end_header_id|>", bos="<|begin_of_text|>"),
    Family("qwen-2.5", CHATML_WITH_DEFAULT, "<|im_start|>system"),
    Family("qwen-3", QWEN_3, "<|im_start|>system"),
    Family("mistral-0.1", MISTRAL_WITHOUT_SYSTEM, None, "user", "<s>"),
    Family("mistral-0.3", MISTRAL_WITH_LATE_SYSTEM, None, "user", "<s>"),
    Family("mistral-small", MISTRAL_WITH_SYSTEM_PROMPT, "[SYSTEM_PROMPT]", bos="<s>"),
    Family("gemma-2", GEMMA_2, None, "user", "<bos>"),
    Family("gemma-3", GEMMA_3, None, bos="<bos>"),
    Family("phi-3", PHI_3, "<|system|>"),
    Family("phi-3-deaf", PHI_3_DEAF, None, "user", "<s>"),
    Family("phi-4-mini", PHI_4_MINI, "<|system|>"),
    Family("phi-4", PHI_4, "<|im_start|>system"),
    Family("one-system-only", ONE_SYSTEM_ONLY, "<|im_start|>system"),
)


def rendered(family: Family, messages: Sequence[Mapping[str, Any]]) -> str:
    """The prompt. Raises Refused for what the template raises."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(family.template).render(messages=list(messages), bos_token=family.bos)


def _refuse(reason: str) -> None:
    raise jinja2.TemplateError(reason)
