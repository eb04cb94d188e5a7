"""Zephyr: `<|role|>`, a line break, the content, EOS."""

from __future__ import annotations

TEMPLATE = """\
{%- for message in messages %}
    {{- '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\\n' }}
{%- endif %}
"""
