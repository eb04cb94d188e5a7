"""Gemma 2 and 3: `<start_of_turn>`, the assistant called model, the system text inside the first turn."""

from __future__ import annotations

TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' and loop.first %}
    {%- elif message['role'] in ('user', 'assistant') %}
        {{- '<start_of_turn>' + ('model' if message['role'] == 'assistant' else 'user') + '\\n' }}
        {%- if loop.index0 == 1 and messages[0]['role'] == 'system' %}
            {{- messages[0]['content'] + '\\n\\n' }}
        {%- endif %}
        {{- message['content'] | trim + '<end_of_turn>\\n' }}
    {%- else %}
        {{- raise_exception('gemma has no place for a later turn of the role ' + message['role']) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<start_of_turn>model\\n' }}
{%- endif %}
"""
