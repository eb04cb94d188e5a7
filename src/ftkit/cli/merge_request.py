"""What `ftkit merge` is asked to merge: adapter and base, from a recipe, the folder of a run, or any adapter."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ftkit.errors import ModelError, RecipeError
from ftkit.recipe.section.model import ModelSection
from ftkit.recipe.section.quantization import QuantizationSection

MOVED = "give the folder it lies in now with --base"


@dataclass(frozen=True)
class Request:
    """What is to be merged.

    Args:
        named_by: where the base's name comes from, for messages.
        expected: fingerprint of the base that was trained on, if it is known.
        corrects: the adapter holds what quantization took from its base (LoftQ).
    """

    adapter: Path
    model: ModelSection
    quantization: QuantizationSection
    named_by: str
    prompts: tuple[str, ...] = ()
    expected: str | None = None
    corrects: bool = False


def read_request(arguments: argparse.Namespace) -> Request:
    """Find recipe, adapter and base from what was typed."""
    given = Path(arguments.recipe).expanduser()
    base = [f"base_model={arguments.base}"] if arguments.base else []
    words = [*arguments.overrides, *base]
    if not given.is_dir():
        return of_recipe(arguments.recipe, words, arguments.adapter)
    folder = Path(arguments.adapter).expanduser() if arguments.adapter else given
    for place in (given, given.parent):
        if (place / "recipe.yml").is_file() and (place == given or given.name.startswith("checkpoint-")):
            return of_recipe(str(place / "recipe.yml"), words, str(folder))
    return of_adapter(folder, words)


def of_recipe(file: str, words: Sequence[str], adapter: str | None) -> Request:
    """The adapter of a recipe: what was asked for, or what lies in its output_dir."""
    from ftkit.recipe import load_recipe

    recipe = load_recipe(file, words)
    asked = adapter or (
        recipe.adapter.lora_model_dir if recipe.origins.get("lora_model_dir") == "command line" else None
    )
    folder = Path(asked or recipe.saving.output_dir).expanduser()
    from_words = recipe.origins.get("base_model") == "command line"
    return Request(
        folder,
        recipe.model,
        recipe.adapter.stored(recipe.quantization),
        "command line" if from_words else f"base_model of {file}",
        tuple(recipe.training.sample_prompts),
        trained_on(folder),
        corrects=recipe.adapter.loftq_bits is not None,
    )


def trained_on(adapter: Path) -> str | None:
    """The fingerprint of the base that was trained on, where the run or its checkpoint wrote it down."""
    from ftkit.save.checkpoint import STATE_FILE, read_record

    state = adapter / STATE_FILE
    if state.is_file():
        text = read_record(adapter)["identity"].get("weights of base_model")
        return None if text is None else str(json.loads(text))
    file = adapter / "run.json"
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_text(encoding="utf8"))["model"].get("weights")
    except (ValueError, KeyError, AttributeError, TypeError) as bad:
        raise ModelError(
            f"run.json is not what a run writes ({type(bad).__name__})",
            where=str(file),
            help="remove it, and the base is not compared with the one that was trained on",
        ) from bad
    return None if found is None else str(found)


def of_adapter(folder: Path, words: Sequence[str]) -> Request:
    """An adapter without a recipe: its base is what the words or adapter_config.json say."""
    from ftkit.recipe.scalars import read_scalar
    from ftkit.save.merge_adapter import CONFIG, refuse_absent

    refuse_absent(folder)
    values = {key: read_scalar(value) for key, _, value in (word.partition("=") for word in words)}
    known = {
        name: {f.alias or n for n, f in kind.model_fields.items()}
        for name, kind in (("m", ModelSection), ("q", QuantizationSection))
    }
    unknown = values.keys() - known["m"] - known["q"]
    if unknown:
        raise RecipeError(
            f"a merge without a recipe has no such key, got {', '.join(sorted(unknown))}",
            where="command line",
            help="give the recipe instead of the folder, or keys of the model and its quantization",
        )
    named_by = "command line" if "base_model" in values else str(folder / CONFIG)
    values.setdefault(
        "base_model", json.loads((folder / CONFIG).read_text(encoding="utf8")).get("base_model_name_or_path")
    )
    if not values["base_model"]:
        raise ModelError("the adapter does not say what its base is, got null", where=named_by, help=MOVED)
    model = ModelSection.model_validate({key: value for key, value in values.items() if key in known["m"]})
    quantization = QuantizationSection.model_validate(
        {key: value for key, value in values.items() if key in known["q"]}
    )
    return Request(folder, model, quantization, named_by)


def refuse_unquantized(request: Request) -> None:
    """Raise for an adapter that corrects its base's rounding, where the base would not be rounded."""
    if request.corrects:
        raise ModelError(
            "the adapter corrects the rounding of its quantized base (LoftQ), and would correct what is not there",
            where=str(request.adapter),
            help="merge into the base as it was trained on, with --faithful",
        )


def refuse_missing_base(request: Request) -> None:
    """Raise where the base is a path that is not there."""
    name = request.model.base_model
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    if is_path and not Path(name).expanduser().is_dir():
        raise ModelError(f"the base model is not there, got {name}", where=request.named_by, help=MOVED)
