"""The data path's rows of the speed tables: prepare against `encode_batch`, packing against numpy's sort.

    PYTHONPATH=src python benchmarks/data_path.py [TOKENIZER_FOLDER]

Prints a table of ratios, each from one run on one machine, best of several, and writes benchmarks/data_path.json.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ftkit.data.packing import pack
from ftkit.data.prepare import prepare
from ftkit.data.tokens import load_tokenizer
from ftkit.recipe.section.data import DataSection, DatasetSection
from ftkit.recipe.section.tokens import TokenSection

REPEATS = 5
CHARACTERS_A_ROW = 12_000


def main() -> None:
    """Measure, print, write."""
    rows: list[dict[str, Any]] = [measure_packing(mean) for mean in (5.0, 6.0, 7.0)]
    if len(sys.argv) > 1:
        section = TokenSection(tokens=("<|im_start|>", "<|im_end|>"))
        tokenizer = load_tokenizer(section, sys.argv[1], revision=None, trust_remote_code=False)
        rows += [measure_prepare(tokenizer, turns) for turns in (20, 40, 80)]
    hardware = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    print(hardware)
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    Path(__file__).with_suffix(".json").write_text(json.dumps({"hardware": hardware, "rows": rows}, indent=1), "utf8")


def measure_packing(mean: float) -> dict[str, Any]:
    """A million lognormal lengths, capacity 4096."""
    lengths = np.random.default_rng(0).lognormal(mean, 1.0, 1_000_000).clip(1, 4096).astype(np.int64)
    clock = time.process_time  # both use one thread: not disturbed by what else runs
    sorting, packing = best(lambda: np.sort(lengths), clock), best(lambda: pack(lengths, 4096), clock)
    excess = len(pack(lengths, 4096)) / -(-int(lengths.sum()) // 4096) - 1
    return {
        "work": f"pack 1M lognormal({mean}, 1)",
        "seconds": round(packing, 4),
        "times the sort": round(packing / sorting, 1),
        "packs above the bound, %": round(100 * excess, 4),
    }


def measure_prepare(tokenizer: Any, num_turns: int) -> dict[str, Any]:
    """Rows of one text length cut into `num_turns` turns; the same text through the tokenizer alone."""
    words = ("the quick brown fox jumps over a lazy dog", "naturally returns again", "tomorrow", "at noon,")
    generator = np.random.default_rng(0)
    size = CHARACTERS_A_ROW // num_turns
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        rows = [[" ".join(generator.choice(words, size))[:size].strip() for _ in range(num_turns)] for _ in range(200)]
        names = ("human", "gpt")
        talks = [[{"from": names[n % 2], "value": text} for n, text in enumerate(row)] for row in rows]
        path.write_text("\n".join(json.dumps({"conversations": talk}) for talk in talks), "utf8")
        data = DataSection(datasets=(DatasetSection(path=str(path), type="sharegpt", conversation="chatml"),))
        made = prepare(data, tokenizer, cache_dir=None, sequence_len=1 << 20, seed=1)
        texts = [tokenizer.decode(example.input_ids) for example in made.train]
        backend = tokenizer.backend_tokenizer
        alone = best(lambda: backend.encode_batch(texts, add_special_tokens=False))
        whole = best(lambda: prepare(data, tokenizer, cache_dir=None, sequence_len=1 << 20, seed=1))
    return {
        "work": f"prepare, {num_turns} turns a row",
        "seconds": round(whole, 3),
        "rate of encode_batch": round(alone / whole, 2),
    }


def best(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the fastest of several runs."""
    times = []
    for _ in range(REPEATS):
        start = clock()
        work()
        times.append(clock() - start)
    return min(times)


if __name__ == "__main__":
    main()
