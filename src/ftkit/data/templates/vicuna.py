"""Vicuna 1.1: `USER: ... ASSISTANT: ...`, EOS after every answer. No default system message."""

from __future__ import annotations

TEMPLATE = """\
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {{- message['content'] + ' ' }}
    {%- elif message['role'] == 'user' %}
        {{- 'USER: ' + message['content'] + ' ' }}
    {%- elif message['role'] == 'assistant' %}
        {{- 'ASSISTANT: ' + message['content'] + eos_token }}
    {%- else %}
        {{- raise_exception('vicuna has no place for a turn of the role ' + message['role']) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- 'ASSISTANT:' }}
{%- endif %}
"""
