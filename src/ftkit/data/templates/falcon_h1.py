"""Falcon-H1 Instruct: ChatML behind a BOS, and with tools in the system turn. It has no place for calls."""

from __future__ import annotations

TEMPLATE = """\
{{- bos_token }}
{%- set has_system = messages[0]['role'] == 'system' %}
{%- if tools %}
    {{- '<|im_start|>system\\n' + (messages[0]['content'] + '\\n\\n' if has_system else '') }}
    {{- 'You are a function calling AI model. You are provided with function signature within <tools> </tools> ' }}
    {{- 'XML tags. You may call one or more functions to assist with the user query. ' }}
    {{- "Don't make assumptions about what values to plug into functions.\\n<tools>\\n" }}
    {%- for tool in tools %}
        {{- '[' + tool | tojson + ']' }}
    {%- endfor %}
    {{- '\\n</tools>\\nFor each function call, return a json object with function name and arguments within ' }}
    {{- '<tool_call> </tool_call> tags with the following schema:\\n<tool_call>\\n' }}
    {{- "{'arguments': <args-dict>, 'name': <function-name>}\\n</tool_call>\\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if not (tools and has_system and loop.first) %}
        {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
