"""The data path's rows of the speed tables: prepare against `encode_batch`, packing against numpy's sort.

    PYTHONPATH=src python benchmarks/data_path.py [TOKENIZER_FOLDER]

Prints a table of ratios, each from one run on one machine, and writes benchmarks/data_path.json. Works take turns,
round after round, and the fastest round of each counts: what else runs on the machine then hits all alike. Time is told
twice, on the wall and on the processor (all threads): the second hardly feels others, the first tells of idle cores.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ftkit.data.packing import pack
from ftkit.data.prepare import prepare
from ftkit.data.tokens import load_tokenizer
from ftkit.recipe.section.data import DataSection, DatasetSection
from ftkit.recipe.section.tokens import TokenSection

ROUNDS = 9
NUM_ROWS, CHARACTERS_A_ROW = 256, 12_000
TURNS = (20, 40, 80)  # of a row of the same length


class Seconds(NamedTuple):
    """Of the fastest round, on the wall and on the processor."""

    wall: float
    processor: float


def main() -> None:
    """Measure, print, write."""
    rows = [measure_packing(mean) for mean in (5.0, 6.0, 7.0)]
    if len(sys.argv) > 1:
        section = TokenSection(tokens=("<|im_start|>", "<|im_end|>"))
        rows += measure_prepare(load_tokenizer(section, sys.argv[1], revision=None, trust_remote_code=False))
    hardware = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    print(hardware)
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    Path(__file__).with_suffix(".json").write_text(json.dumps({"hardware": hardware, "rows": rows}, indent=1), "utf8")


def measure_packing(mean: float) -> dict[str, Any]:
    """A million lognormal lengths, capacity 4096."""
    lengths = np.random.default_rng(0).lognormal(mean, 1.0, 1_000_000).clip(1, 4096).astype(np.int64)
    found = fastest({"sort": lambda: np.sort(lengths), "pack": lambda: pack(lengths, 4096)})
    excess = len(pack(lengths, 4096)) / -(-int(lengths.sum()) // 4096) - 1
    return {
        "work": f"pack 1M lognormal({mean}, 1)",
        "seconds": round(found["pack"].processor, 4),
        "times the sort": round(found["pack"].processor / found["sort"].processor, 1),
        "packs above the bound, %": round(100 * excess, 4),
    }


def measure_prepare(tokenizer: Any) -> list[dict[str, Any]]:
    """Rows of one text length cut into ever more turns; the same text through the tokenizer alone."""
    works: dict[str, Callable[[], object]] = {}
    backend = tokenizer.backend_tokenizer
    with tempfile.TemporaryDirectory() as folder:
        for num_turns in TURNS:
            data = conversations(Path(folder) / f"{num_turns}.jsonl", num_turns)
            made = prepare(data, tokenizer, cache_dir=None, sequence_len=1 << 20, seed=1)
            texts = [tokenizer.decode(example.input_ids) for example in made.train]
            works[f"alone {num_turns}"] = lambda texts=texts: backend.encode_batch(texts, add_special_tokens=False)
            works[f"prepare {num_turns}"] = lambda data=data: prepare(
                data, tokenizer, cache_dir=None, sequence_len=1 << 20, seed=1
            )
        found = fastest(works)
    return [
        {
            "work": f"prepare, {num_turns} turns a row",
            "seconds": round(whole.wall, 3),
            "rate of encode_batch": round(alone.wall / whole.wall, 2),
            "the same by processor time": round(alone.processor / whole.processor, 2),
        }
        for num_turns in TURNS
        for alone, whole in [(found[f"alone {num_turns}"], found[f"prepare {num_turns}"])]
    ]


def conversations(path: Path, num_turns: int) -> DataSection:
    """ShareGPT rows of `num_turns` turns, `CHARACTERS_A_ROW` characters in all, rendered by ChatML."""
    words = ("the quick brown fox jumps over a lazy dog", "naturally returns again", "tomorrow", "at noon,")
    generator, names = np.random.default_rng(0), ("human", "gpt")
    size = CHARACTERS_A_ROW // num_turns
    rows = [[" ".join(generator.choice(words, size))[:size].strip() for _ in range(num_turns)] for _ in range(NUM_ROWS)]
    talks = [[{"from": names[n % 2], "value": text} for n, text in enumerate(row)] for row in rows]
    path.write_text("\n".join(json.dumps({"conversations": talk}) for talk in talks), "utf8")
    return DataSection(datasets=(DatasetSection(path=str(path), type="sharegpt", conversation="chatml"),))


def fastest(works: Mapping[str, Callable[[], object]]) -> dict[str, Seconds]:
    """The fastest of several rounds of each work, the works taking turns."""
    found = {name: Seconds(float("inf"), float("inf")) for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            wall, processor = time.perf_counter(), time.process_time()
            work()
            took = Seconds(time.perf_counter() - wall, time.process_time() - processor)
            found[name] = Seconds(min(found[name].wall, took.wall), min(found[name].processor, took.processor))
    return found


if __name__ == "__main__":
    main()
