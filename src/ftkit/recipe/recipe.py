"""A validated recipe: one frozen value made of sections, each holding the YAML keys of one part of ftkit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ftkit.recipe.problems import Problem
from ftkit.recipe.section.adapter import AdapterSection
from ftkit.recipe.section.backend import BackendSection
from ftkit.recipe.section.base import Section
from ftkit.recipe.section.data import DataSection
from ftkit.recipe.section.evaluation import EvaluationSection
from ftkit.recipe.section.frozen import thaw
from ftkit.recipe.section.general import GeneralSection
from ftkit.recipe.section.model import ModelSection
from ftkit.recipe.section.optimization import OptimizationSection
from ftkit.recipe.section.quantization import QuantizationSection
from ftkit.recipe.section.saving import SavingSection
from ftkit.recipe.section.tokens import TokenSection
from ftkit.recipe.section.tracking import TrackingSection
from ftkit.recipe.section.training import TrainingSection

SECTIONS: Mapping[str, type[Section]] = {
    "model": ModelSection,
    "tokens": TokenSection,
    "quantization": QuantizationSection,
    "adapter": AdapterSection,
    "data": DataSection,
    "training": TrainingSection,
    "optimization": OptimizationSection,
    "evaluation": EvaluationSection,
    "saving": SavingSection,
    "tracking": TrackingSection,
    "backend": BackendSection,
    "general": GeneralSection,
}


@dataclass(frozen=True)
class Recipe:
    """Everything a recipe says. Equal and hashable by its values; where they came from does not count.

    Args:
        file: the path it was read from.
        source_text: the file's text, untouched.
        overrides: `key=value` words of the command line.
        given: YAML keys that the file or the command line set, at top level, under today's names.
        origins: for each of these, `line N`, `command line`, or the old key it was made from.
        findings: warnings and notes that came up while reading.
    """

    model: ModelSection
    tokens: TokenSection
    quantization: QuantizationSection
    adapter: AdapterSection
    data: DataSection
    training: TrainingSection
    optimization: OptimizationSection
    evaluation: EvaluationSection
    saving: SavingSection
    tracking: TrackingSection
    backend: BackendSection
    general: GeneralSection
    file: str = field(default="", compare=False)
    source_text: str = field(default="", compare=False, repr=False)
    overrides: tuple[str, ...] = field(default=(), compare=False, repr=False)
    given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    findings: tuple[Problem, ...] = field(default=(), compare=False, repr=False)

    def sections(self) -> dict[str, Section]:
        """The sections by attribute name."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name in SECTIONS}

    def as_keys(self) -> dict[str, Any]:
        """All keys with their values, flat, as plain YAML values."""
        flat: dict[str, Any] = {}
        for section in self.sections().values():
            flat |= {key: thaw(value) for key, value in section.model_dump(by_alias=True, mode="json").items()}
        return flat

    def as_yaml(self) -> str:
        """The recipe as it was run: the file's own text, or all given keys and values where overrides changed it."""
        if not self.overrides:
            return self.source_text
        import yaml

        keys = {key: value for key, value in self.as_keys().items() if key in self.given}
        words = " ".join(self.overrides)
        return f"# {self.file} with {words}\n{yaml.safe_dump(keys, sort_keys=False, allow_unicode=True)}"
