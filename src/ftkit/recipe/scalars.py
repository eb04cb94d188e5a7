"""Plain YAML scalars read as YAML 1.2's core schema does.

YAML 1.1, which most readers still follow, reads `2e-4` as text, `010` as 8, `1:30` as 90 and `off` as false.
Here `2e-4` is a number, `010` is 10, and the other two stay text for the key's type to judge: a key that is true or
false takes `off` as false, a name stays a name.

Source: https://yaml.org/spec/1.2.2/#103-core-schema
"""

from __future__ import annotations

import re

NULLS = {"", "~", "null", "Null", "NULL"}
BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
INTEGER = re.compile(r"[-+]?[0-9]+")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
MAX_DIGITS = 4000  # Python refuses to read more than 4300
# The rare ones are compiled when the first text looks like them.
OTHER_BASE = r"0o[0-7]+|0x[0-9a-fA-F]+"
SPECIAL_FLOAT = r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"

Scalar = None | bool | int | float | str


def read_scalar(text: str) -> Scalar:
    """Return the value of the plain (unquoted) scalar `text`."""
    if text in NULLS:
        return None
    if text in BOOLEANS:
        return BOOLEANS[text]
    if INTEGER.fullmatch(text):
        return int(text) if len(text) < MAX_DIGITS else text
    if FLOAT.fullmatch(text):
        return float(text)
    if text.startswith("0") and re.fullmatch(OTHER_BASE, text):
        return int(text, 0)
    if "." in text[:2] and re.fullmatch(SPECIAL_FLOAT, text):
        return float(text.replace(".", "", 1))
    return text
