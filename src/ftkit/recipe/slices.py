"""From the YAML of an interleave file, in mergekit's slice syntax, to a `Stacking`. All that is wrong is said at once.

    merge_method: passthrough
    dtype: bfloat16
    slices:
      - sources:
          - model: org/model
            layer_range: [0, 20]          # up to, not including, 20
            parameters:                   # here, beside `sources`, or for the whole file
              scale:
                - {filter: o_proj, value: 0.0}
                - value: 1.0

Source: https://github.com/arcee-ai/mergekit, docs/merge_methods.md, "Passthrough".
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from ftkit.recipe.load import read_file
from ftkit.recipe.problems import InvalidRecipe
from ftkit.recipe.section.slices import ScaleRule, Slice, Stacking
from ftkit.recipe.source import Path, Source

DTYPES = ("bfloat16", "float16", "float32")
TOP = ("slices", "merge_method", "dtype", "tokenizer_source", "parameters")


def load_stacking(path: str) -> Stacking:
    """Read the interleave file at `path`.

    Raises:
        RecipeError: it cannot be read, or anything in it is wrong; `InvalidRecipe.problems` has the whole list.
    """
    source = read_file(path)
    stacking = None
    if source.data:
        reader = StackingReader(source)
        stacking = reader.read(source.data)
    errors = sorted(
        (problem for problem in source.problems if problem.severity == "error"), key=lambda p: (p.line, p.column)
    )
    if errors or stacking is None:
        raise InvalidRecipe(errors)
    return stacking


class StackingReader:
    """Turns plain values into a `Stacking`, and notes what is wrong where."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def wrong(self, path: Path, message: str, help: str) -> None:
        """Note an error."""
        self.source.note("interleave", path, message, help)

    def known(self, values: Any, path: Path, names: Iterable[str]) -> Mapping[str, Any]:
        """`values` if it is a mapping; keys that are not in `names` are errors."""
        if not isinstance(values, Mapping):
            self.wrong(path, f"a mapping is wanted, got {values}", f"write {', '.join(names)}")
            return {}
        for key in values:
            if key not in names:
                near = difflib.get_close_matches(key, list(names), n=1)
                help = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(names)}"
                self.source.note("interleave", (*path, key), f"no key is called `{key}` here", help, at_key=True)
        return values

    def read(self, data: Mapping[str, Any]) -> Stacking:
        """The whole file."""
        self.known(data, (), TOP)
        method, dtype = data.get("merge_method"), data.get("dtype")
        if method != "passthrough":
            help = "write merge_method: passthrough; layers are stacked as they are, nothing is averaged"
            self.wrong(("merge_method",), f"interleave knows one merge_method, passthrough, got {method}", help)
        if dtype is not None and dtype not in DTYPES:
            self.wrong(("dtype",), f"no such dtype, got {dtype}", f"one of {', '.join(DTYPES)}")
        slices = data.get("slices")
        if not isinstance(slices, list) or not slices:
            self.wrong(
                ("slices",), f"a list of slices is wanted, got {slices}", "write `slices:` and `- sources:` below"
            )
            slices = []
        scale = self.scale(data.get("parameters"), ("parameters",))
        read = [self.slice(values, ("slices", index), scale) for index, values in enumerate(slices)]
        return Stacking(self.source.file, tuple(one for one in read if one), dtype, self.tokenizer(data))

    def tokenizer(self, data: Mapping[str, Any]) -> str | None:
        """The model whose tokenizer is taken."""
        name = data.get("tokenizer_source")
        if name == "union":
            help = "name one of the models, or leave the key out for the first one's"
            self.wrong(("tokenizer_source",), "a union of tokenizers needs other embeddings, got union", help)
        return None if name in (None, "base", "union") else str(name)

    def slice(self, values: Any, path: Path, scale: tuple[ScaleRule, ...]) -> Slice | None:
        """One entry of `slices`."""
        mine = self.known(values, path, ("sources", "parameters"))
        sources = mine.get("sources")
        if not isinstance(sources, list) or len(sources) != 1:
            got = len(sources) if isinstance(sources, list) else sources
            help = "give each model a slice of its own; one after another they are stacked"
            self.wrong((*path, "sources"), f"passthrough takes one source a slice, got {got}", help)
            return None
        inner = (*path, "sources", 0)
        given = self.known(sources[0], inner, ("model", "layer_range", "parameters"))
        model, ends = given.get("model"), given.get("layer_range")
        if not isinstance(model, str) or not model or "+" in model:
            help = "give a folder or hub id; an adapter is merged first, with ftkit merge"
            self.wrong((*inner, "model"), f"a model is wanted, got {model}", help)
        rules = self.scale(given.get("parameters"), (*inner, "parameters"))
        rules += self.scale(mine.get("parameters"), (*path, "parameters")) + scale
        if not is_range(ends):
            help = "write layer_range: [0, 20] for layers 0 to 19"
            self.wrong((*inner, "layer_range"), f"two whole numbers, the second larger, are wanted, got {ends}", help)
            return None
        place = self.source.problem("interleave", (*inner, "layer_range"), "")
        return Slice(str(model), ends[0], ends[1], f"{place.file}:{place.line}:{place.column}", rules)

    def scale(self, parameters: Any, path: Path) -> tuple[ScaleRule, ...]:
        """The rules of `parameters: scale:`, which is a number or a list of filters and values."""
        if parameters is None:
            return ()
        given = self.known(parameters, path, ("scale",)).get("scale")
        path = (*path, "scale")
        if is_number(given):
            return (ScaleRule(None, float(given)),)
        if not isinstance(given, list) or not all(isinstance(rule, Mapping) for rule in given):
            help = "write `- filter: o_proj` with `value: 0.0` below; what changes from layer to layer takes slices"
            self.wrong(path, f"a number, or a list of filters with values, is wanted, got {given}", help)
            return ()
        return tuple(rule for index, values in enumerate(given) for rule in self.rule(values, (*path, index)))

    def rule(self, values: Any, path: Path) -> Iterable[ScaleRule]:
        """One entry of a list of scales."""
        rule = self.known(values, path, ("filter", "value"))
        filter, value = rule.get("filter"), rule.get("value")
        if not is_number(value):
            self.wrong((*path, "value"), f"a number is wanted, got {value}", "write value: 0.0")
            return
        yield ScaleRule(None if filter in (None, "*") else str(filter), float(value))


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether a value is a number, and not true or false."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_range(value: Any) -> TypeGuard[list[int]]:
    """Whether a value is [first, last] with first < last."""
    whole = isinstance(value, list) and all(isinstance(end, int) and not isinstance(end, bool) for end in value)
    return whole and len(value) == 2 and 0 <= value[0] < value[1]
