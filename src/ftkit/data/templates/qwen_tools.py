"""How Qwen writes tools, calls and their results, as pieces of its chat templates.

The tools stand in the system turn as lines of JSON, a call inside `<tool_call>`, results inside the user's turn.
"""

from __future__ import annotations

# Behind the system text, a blank line in between; ends the system turn.
TOOLS = """\
    {{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n' }}
    {{- 'You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' + tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments ' }}
    {{- 'within <tool_call></tool_call> XML tags:\\n<tool_call>\\n' }}
    {{- '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call><|im_end|>\\n' }}
"""
# `written` says whether something of the turn stands before the call.
CALLS = """\
        {%- for call in message['tool_calls'] or [] %}
            {%- set call = call['function'] if call['function'] is defined else call %}
            {{- '\\n' if not loop.first or written }}
            {{- '<tool_call>\\n{"name": "' + call['name'] + '", "arguments": ' }}
            {{- call['arguments'] if call['arguments'] is string else call['arguments'] | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
"""
# Results that follow one another share one turn of the user.
RESULTS = """\
        {{- '<|im_start|>user' if loop.first or loop.previtem['role'] != 'tool' }}
        {{- '\\n<tool_response>\\n' + message['content'] + '\\n</tool_response>' }}
        {{- '<|im_end|>\\n' if loop.last or loop.nextitem['role'] != 'tool' }}
"""
