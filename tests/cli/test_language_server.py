"""The schema in yaml-language-server itself, where that is installed (`npm install -g yaml-language-server`)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from language_server import LanguageServer

from ftkit.recipe import check_recipe

COMMAND = shutil.which(os.environ.get("YAML_LANGUAGE_SERVER", "yaml-language-server"))
pytestmark = pytest.mark.skipif(COMMAND is None, reason="yaml-language-server is not installed")
RECIPE = """base_model: m
datasets:
  - path: rows.jsonl
    type: alpaca
"""
REAL = (
    "axolotl/qat_nvfp4__Gemma3-12B_qat.yml",
    "axolotl/llama-2__loftq.yml",
    "axolotl_old/examples__mistral__mixtral-qlora-fsdp-2024-03-08.yml",
    "wild/125_axolotl-ai-cloud_axolotl-cookbook_llama-3_1-70b-fft.yml",
    "wild/185_shisa-ai_shisa-v2_1xMI300-adamw_torch-liger.yml",
)


@pytest.fixture(scope="module")
def server() -> Iterator[LanguageServer]:
    assert COMMAND is not None
    server = LanguageServer([COMMAND], Path(__file__).resolve().parents[2] / "docs" / "recipe.schema.json")
    yield server
    server.close()


@pytest.mark.parametrize("name", REAL)
def test_a_real_recipe_is_not_underlined(server: LanguageServer, corpus: Path, name: str) -> None:
    assert server.problems(Path(name).stem, (corpus / "recipes" / name).read_text(encoding="utf8")) == []


@pytest.mark.slow
def test_it_agrees_with_check_about_every_real_recipe(server: LanguageServer, corpus: Path) -> None:
    """But for blanks pasted from web pages, which are no YAML, and for what one key says about another."""
    files = sorted((corpus / "recipes").glob("*/*.y*ml"))
    assert len(files) >= 300
    differing = {}
    for path in files:
        text = path.read_bytes().decode("utf8", errors="replace")
        recipe, problems = check_recipe(path)
        underlined = server.problems(f"{path.parent.name}-{path.stem}", text)
        codes = {problem.code for problem in problems if problem.severity == "error"}
        if (recipe is None) != bool(underlined) and "\xa0" not in text:
            differing[path.name] = codes or underlined
    of_several_keys = {"quantized-without-adapter", "migration-clash", "batch-size", "unknown-type", "refused"}
    assert {name: found for name, found in differing.items() if not set(found) <= of_several_keys} == {}
    assert len(differing) <= 6


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("lerning_rate: 2e-4\n", [(5, "Property lerning_rate is not allowed.")]),
        ("bf16: maybe\n", [(5, "Expected true or false or one of auto, full.")]),
        ("micro_batch_size: many\n", [(5, "Incorrect type. Expected one of integer, null.")]),
        ("val_set_size: half\n", [(5, "Incorrect type. Expected one of integer, number, null.")]),
        ("qat:\n  weigth_dtype: int4\n", [(6, "Property weigth_dtype is not allowed.")]),
        (
            "gptq: true\n",
            [
                (
                    5,
                    "Refused: GPTQ weights are not supported; take the unquantized model with load_in_4bit: true and "
                    "adapter: qlora.",
                )
            ],
        ),
        ("gptq: false\nepochs: 3\nliger_rope: true\nrunpod: {gpu: A100}\nlora_r:\n", []),
    ],
)
def test_a_typo_and_a_wrong_type_are_underlined_and_what_is_harmless_is_not(
    server: LanguageServer, more: str, said: list[tuple[int, str]]
) -> None:
    assert server.problems(f"mistake-{abs(hash(more))}", RECIPE + more) == said


def test_keys_are_explained_and_offered(server: LanguageServer) -> None:
    assert server.problems("hover", RECIPE + "epochs: 3\n\n") == []
    assert "Now called num_epochs." in server.hover("hover", 5, 2)
    offered = server.completions("hover", 6, 1)
    assert {"learning_rate", "qat", "use_eaft"} <= offered
    assert not {"epochs", "gptq", "liger_rope", "datasets"} & offered
