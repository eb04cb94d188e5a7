"""`ftkit interleave`: from a file of slices to a folder that transformers loads, and the files that are shipped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from ftkit.cli.main import main
from ftkit.recipe.slices import load_stacking
from tiny import tiny_model

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SPEC = """merge_method: passthrough
slices:
  - sources: [{{model: {model}, layer_range: [0, 2]}}]
  - sources:
      - model: {model}
        layer_range: [1, 2]
        parameters: {{scale: [{{filter: o_proj, value: 0.0}}, {{filter: down_proj, value: 0.0}}, {{value: 1.0}}]}}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    tiny_model(tmp_path / "model")
    (tmp_path / "deep.yml").write_text(SPEC.format(model=tmp_path / "model"), encoding="utf8")
    return tmp_path / "deep.yml"


def test_a_stack_is_written_and_reported(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = spec.parent / "out"
    assert main(["interleave", str(spec), "--out", str(out), "--shard-size", "200KB"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"layers 3: 0-1 of {spec.parent}/model, 1-1 of {spec.parent}/model" in said
    assert "scaled 2 tensors, 2 of them to zero" in said
    net = AutoModelForCausalLM.from_pretrained(out)
    assert len(net.model.layers) == 3
    assert len(list(out.glob("model-*.safetensors"))) > 1
    assert f"parameters {sum(p.numel() for p in net.parameters()) / 1e6:,.1f} million in float32" in said
    assert AutoTokenizer.from_pretrained(out).eos_token == "<|im_end|>"


def test_without_out_the_name_of_the_file_names_the_folder(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(spec.parent)
    assert main(["interleave", "deep.yml"]) == 0
    assert (spec.parent / "outputs" / "deep" / "config.json").is_file()


def test_a_plan_writes_nothing(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(spec.parent.iterdir())
    assert main(["interleave", str(spec), "--plan", "--json", "--out", str(spec.parent / "out")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["layers"], report["dtype"], report["files"]) == (3, "float32", [])
    assert report["scaled"] == {
        "model.layers.2.self_attn.o_proj.weight": 0.0,
        "model.layers.2.mlp.down_proj.weight": 0.0,
    }
    assert sorted(spec.parent.iterdir()) == before


def test_nothing_is_overwritten(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["interleave", str(spec), "--out", str(spec.parent / "model")]) == 6
    assert "there is something already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (("passthrough", "linear"), 2, "deep.yml:1:15: interleave knows one merge_method, passthrough, got linear"),
        (("[1, 2]", "[1, 3]"), 4, "deep.yml:6:22: layers 1 to 2 of "),
        (("/model, layer_range: [0", "/nowhere, layer_range: [0"), 4, "no such folder"),
    ],
)
def test_what_is_wrong_leaves_nothing(
    spec: Path, change: tuple[str, str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spec.write_text(spec.read_text("utf8").replace(*change), encoding="utf8")
    before = sorted(spec.parent.iterdir())
    assert main(["interleave", str(spec), "--out", str(spec.parent / "out")]) == code
    assert said in capsys.readouterr().err
    assert sorted(spec.parent.iterdir()) == before


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("interleave-*.yml")), ids=lambda path: path.stem)
def test_every_shipped_file_is_read_and_says_how_it_is_run(path: Path) -> None:
    stacking = load_stacking(str(path))
    assert f"ftkit interleave configs/{path.name}" in path.read_text("utf8")
    ends = [(one.first, one.last) for one in stacking.slices]
    if "140" in path.stem:
        assert ends == [(start, start + 20) for start in range(0, 61, 10)]
        assert sum(last - first for first, last in ends) == 140
    else:
        assert {one.model for one in stacking.slices} == {"ftkit:smollm2-135m-instruct"}
        assert (ends[0][0], ends[-1][1]) == (0, 30)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("interleave-*-140.yml")), ids=lambda path: path.stem)
def test_eighty_layers_become_one_hundred_and_forty(tmp_path: Path, path: Path) -> None:
    """The files for large models, on a model as deep and very narrow."""
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    base = tiny_model(tmp_path / "model", vocab_size=32, num_hidden_layers=80, **shape)
    model = load_stacking(str(path)).slices[0].model
    (tmp_path / "spec.yml").write_text(path.read_text("utf8").replace(f" {model}\n", f" {base}\n"), encoding="utf8")
    assert main(["interleave", str(tmp_path / "spec.yml"), "--out", str(tmp_path / "out")]) == 0
    before, after = load_file(base / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    mapping = [layer for start in range(0, 61, 10) for layer in range(start, start + 20)]
    name = "model.layers.{}.self_attn.q_proj.weight"
    assert all(
        torch.equal(after[name.format(new)], before[name.format(old)].to(after[name.format(new)].dtype))
        for new, old in enumerate(mapping)
    )
    assert len(after) == len(before) // 80 * 140 + 3
