"""What a run says and leaves of its data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftkit.cli.main import main
from tiny import sharegpt_rows, tiny_model


def test_a_run_leaves_the_rows_it_skipped_with_their_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, rows = tiny_model(tmp_path / "model"), sharegpt_rows(tmp_path / "rows.jsonl", repeat=2)
    with rows.open("a", encoding="utf8") as file:
        file.write('{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": null}]}\n')
    (tmp_path / "recipe.yml").write_text(
        f"""
base_model: {model}
datasets: [{{path: {rows}, type: sharegpt}}]
chat_template: chatml
bad_rows: skip
sequence_len: 128
sample_packing: true
micro_batch_size: 2
val_set_size: 0.25
max_steps: 1
learning_rate: 1e-3
dataset_prepared_path: {tmp_path / "cache"}
output_dir: {tmp_path / "out"}
""",
        encoding="utf8",
    )
    for _ in range(2):  # from fresh rows and from the cache
        assert main(["train", str(tmp_path / "recipe.yml")]) == 0
        out = capsys.readouterr().out
        assert "left out: 1 bad row" in " ".join(out.split())
        assert "note: eval_sample_packing: 2 documents fill 1 of the 2 packs" in out
        (line,) = (tmp_path / "out" / "rejected.jsonl").read_text(encoding="utf8").splitlines()
        assert json.loads(line) == {"where": f"{rows}:9", "reason": "turn 2: 'value' must be text, got null"}
    rows.write_text("".join(rows.read_text(encoding="utf8").splitlines(keepends=True)[:-1]), encoding="utf8")
    assert main(["train", str(tmp_path / "recipe.yml")]) == 0
    assert not (tmp_path / "out" / "rejected.jsonl").exists()
