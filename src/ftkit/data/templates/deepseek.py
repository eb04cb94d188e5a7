"""DeepSeek V2: `<｜User｜>`, `<｜Assistant｜>`, EOS."""

from __future__ import annotations

TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {{- message['content'] + '\\n\\n' }}
    {%- elif message['role'] == 'user' %}
        {{- '<｜User｜>' + message['content'] }}
    {%- elif message['role'] == 'assistant' %}
        {{- '<｜Assistant｜>' + message['content'] + eos_token }}
    {%- else %}
        {{- raise_exception('deepseek has no place for a turn of the role ' + message['role']) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<｜Assistant｜>' }}
{%- endif %}
"""
