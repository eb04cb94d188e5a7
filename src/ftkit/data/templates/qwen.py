"""Qwen 2.5: ChatML with Qwen's own default system message, and with tools."""

from __future__ import annotations

from ftkit.data.templates.qwen_tools import CALLS, RESULTS, TOOLS

TEMPLATE = (
    """\
{%- set own = 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' %}
{%- set has_system = messages[0]['role'] == 'system' %}
{{- '<|im_start|>system\\n' + (messages[0]['content'] if has_system else own) }}
{%- if tools %}
    {{- '\\n\\n' }}
"""
    + TOOLS
    + """\
{%- else %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages[1 if has_system else 0:] %}
    {%- if message['role'] == 'tool' %}
"""
    + RESULTS
    + """\
    {%- elif message['tool_calls'] %}
        {{- '<|im_start|>assistant' + ('\\n' + message['content'] if message['content'] else '') }}
        {%- set written = true %}
"""
    + CALLS
    + """\
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
)
