"""Llama 2: `[INST] ... [/INST]`, BOS before every user turn, the system text inside the first one."""

from __future__ import annotations

TEMPLATE = """\
{%- for message in messages %}
    {%- if message['role'] == 'system' and loop.first %}
    {%- elif message['role'] == 'user' %}
        {{- bos_token + '[INST] ' }}
        {%- if loop.index0 == 1 and messages[0]['role'] == 'system' %}
            {{- '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' }}
        {%- endif %}
        {{- message['content'] | trim + ' [/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] | trim + ' ' + eos_token }}
    {%- else %}
        {{- raise_exception('llama2 has no place for a later turn of the role ' + message['role']) }}
    {%- endif %}
{%- endfor %}
"""
