"""Run as a process: an ftkit command, and how far its own memory rose above what its imports take.

Prints one line of JSON: {"code": exit code, "bytes": highest RssAnon during the command - RssAnon before}. Pages of
mapped files do not count: the system takes them back when it wants to.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import bitsandbytes  # noqa: F401 - imported before, so that it is not counted
import peft  # noqa: F401
import transformers
from transformers import AutoTokenizer, LlamaForCausalLM  # noqa: F401

from ftkit.cli.main import main


def anonymous() -> int:
    """Bytes of this process that no file stands behind."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def watch(highest: list[int], done: threading.Event) -> None:
    while not done.is_set():
        highest[0] = max(highest[0], anonymous())
        time.sleep(0.001)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    before, done = anonymous(), threading.Event()
    highest = [before]
    thread = threading.Thread(target=watch, args=(highest, done))
    thread.start()
    code = main(sys.argv[1:])
    done.set()
    thread.join()
    print(json.dumps({"code": code, "bytes": highest[0] - before}))
