"""Mistral and Mixtral Instruct, first versions: `[INST] ... [/INST]`, the system text inside the first user turn."""

from __future__ import annotations

TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' and loop.first %}
    {%- elif message['role'] == 'user' %}
        {{- '[INST] ' }}
        {%- if loop.index0 == 1 and messages[0]['role'] == 'system' %}
            {{- messages[0]['content'] + '\\n\\n' }}
        {%- endif %}
        {{- message['content'] + ' [/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] + eos_token }}
    {%- else %}
        {{- raise_exception('mistral has no place for a later turn of the role ' + message['role']) }}
    {%- endif %}
{%- endfor %}
"""
