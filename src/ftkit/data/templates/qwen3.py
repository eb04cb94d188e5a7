"""Qwen 3: ChatML with tools, and with reasoning behind the last question in `<think>`, empty where there is none."""

from __future__ import annotations

from ftkit.data.templates.qwen_tools import CALLS, RESULTS, TOOLS

TEMPLATE = (
    """\
{%- set has_system = messages[0]['role'] == 'system' %}
{%- if has_system or tools %}
    {{- '<|im_start|>system\\n' + (messages[0]['content'] if has_system else '') }}
    {%- if tools %}
        {{- '\\n\\n' if has_system else '' }}
"""
    + TOOLS
    + """\
    {%- else %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set turns = messages[1 if has_system else 0:] %}
{%- set last = namespace(question=turns | length - 1) %}
{%- for message in turns %}
    {%- set said = message['content'] | trim('\\n') %}
    {%- set is_result = said.startswith('<tool_response>') and said.endswith('</tool_response>') %}
    {%- if message['role'] == 'user' and not is_result %}
        {%- set last.question = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in turns %}
    {%- if message['role'] == 'tool' %}
"""
    + RESULTS
    + """\
    {%- elif message['role'] == 'assistant' %}
        {%- set content = message['content'] %}
        {%- set thought = message['reasoning_content'] if message['reasoning_content'] is string else '' %}
        {%- if message['reasoning_content'] is not string and '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > last.question and (loop.last or thought) %}
            {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- content }}
        {%- endif %}
        {%- set written = content %}
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
    {{- '<think>\\n\\n</think>\\n\\n' if enable_thinking is defined and enable_thinking is false else '' }}
{%- endif %}
"""
)
