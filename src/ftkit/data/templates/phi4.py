"""Phi 4: ChatML with `<|im_sep|>` in place of line breaks. No default system message."""

from __future__ import annotations

TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '<|im_sep|>' + message['content'] + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant<|im_sep|>' }}
{%- endif %}
"""
