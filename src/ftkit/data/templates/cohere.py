"""Command R and Aya without tools: `<|START_OF_TURN_TOKEN|>`, a token for the role, the text."""

from __future__ import annotations

TEMPLATE = """\
{{- bos_token }}
{%- set tokens = {'system': '<|SYSTEM_TOKEN|>', 'user': '<|USER_TOKEN|>', 'assistant': '<|CHATBOT_TOKEN|>'} %}
{%- for message in messages %}
    {%- if message['role'] not in tokens %}
        {{- raise_exception('cohere has no place for a turn of the role ' + message['role']) }}
    {%- endif %}
    {%- set content = message['content'] if message['role'] == 'system' else message['content'] | trim %}
    {{- '<|START_OF_TURN_TOKEN|>' + tokens[message['role']] + content + '<|END_OF_TURN_TOKEN|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}
{%- endif %}
"""
