"""Alpaca's headings for conversations: `### Instruction:`, `### Response:`, EOS after every answer."""

from __future__ import annotations

TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {{- message['content'] }}
    {%- elif message['role'] == 'user' %}
        {{- '### Instruction:\\n' + message['content'] }}
    {%- elif message['role'] == 'assistant' %}
        {{- '### Response:\\n' + message['content'] + eos_token }}
    {%- else %}
        {{- raise_exception('alpaca has no place for a turn of the role ' + message['role']) }}
    {%- endif %}
    {%- if not loop.last %}
        {{- '\\n\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '\\n\\n### Response:\\n' }}
{%- endif %}
"""
