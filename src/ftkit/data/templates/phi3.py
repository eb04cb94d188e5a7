"""Phi 3 and 3.5: `<|role|>`, a line break, the content, `<|end|>`."""

from __future__ import annotations

TEMPLATE = """\
{%- for message in messages %}
    {{- '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\\n' }}
{%- endif %}
"""
