"""ChatML: `<|im_start|>role`, a line break, the content, `<|im_end|>`, a line break. No default system message."""

from __future__ import annotations

TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
