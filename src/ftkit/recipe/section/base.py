"""What every section of a recipe has in common.

A section is a frozen value whose fields carry the YAML keys' own names (`model_config` is `config_overrides`, with that
alias). Lists are tuples and mappings are `FrozenMap`, so that a recipe is hashable. A field's description is the one
source of docs/recipe.md and of the JSON schema.

The interface is pydantic's, as far as it is used. pydantic itself is not: `ftkit check` should answer at once, and
importing it and building its classes took as long as everything else together, while `recipe/fit.py` does the checking
anyway, in our words and with the line of everything. The section files do without `from __future__ import annotations`:
types are looked at, and so need not be evaluated once more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from ftkit.recipe.section.frozen import thaw

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Callable[[Any], Any]:
        """Tells type checkers only: a section is made like a dataclass."""
        return lambda kind: kind


MISSING: Any = object()
AnySection = TypeVar("AnySection", bound="Section")


class FieldInfo:
    """One key: its type, default, meaning."""

    __slots__ = ("alias", "annotation", "default", "default_factory", "description")

    def __init__(self, default: Any, default_factory: Callable[[], Any] | None, alias: str | None, description: str):
        self.default, self.default_factory, self.alias, self.description = default, default_factory, alias, description
        self.annotation: Any = None

    def is_required(self) -> bool:
        """Whether the key has no default."""
        return self.default is MISSING and self.default_factory is None

    def get_default(self, *, call_default_factory: bool = True) -> Any:
        """The default's value; None for one that would have to be made and should not."""
        if self.default_factory:
            return self.default_factory() if call_default_factory else None
        return self.default


def Field(  # noqa: N802 - named as pydantic's
    *,
    default: Any = MISSING,
    default_factory: Callable[[], Any] | None = None,
    alias: str | None = None,
    description: str = "",
) -> Any:
    """What stands behind `name: type =` in a section."""
    return FieldInfo(default, default_factory, alias, description)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
class Section:
    """Base of all sections: frozen, no unknown keys; numbers are taken as text where text is wanted."""

    model_fields: ClassVar[dict[str, FieldInfo]] = {}
    model_fields_set: frozenset[str]
    __slots__ = ("__dict__", "model_fields_set")

    def __init_subclass__(cls) -> None:
        """Collect the fields of a new section."""
        cls.model_fields = {}
        for name, annotation in cls.__annotations__.items():
            field = cls.__dict__[name]
            field.annotation = annotation
            cls.model_fields[name] = field
            delattr(cls, name)

    def __init__(self, **values: Any) -> None:
        """Check and take `values`, by field name or YAML key; None is absent."""
        from ftkit.recipe.construct import fit_values

        built = fit_values(type(self), values)
        self.__dict__.update(built.__dict__)
        object.__setattr__(self, "model_fields_set", built.model_fields_set)

    @classmethod
    def model_construct(cls: type[AnySection], **values: Any) -> AnySection:
        """A section of `values` by field name, taken as they are."""
        section = object.__new__(cls)
        defaults = {name: field.get_default() for name, field in cls.model_fields.items() if name not in values}
        section.__dict__.update({name: values.get(name, defaults.get(name)) for name in cls.model_fields})
        object.__setattr__(section, "model_fields_set", frozenset(values))
        return section

    @classmethod
    def model_validate(cls: type[AnySection], values: Mapping[str, Any]) -> AnySection:
        """A section of `values`, by field name or YAML key."""
        return cls(**values)

    def model_copy(self: AnySection, *, update: Mapping[str, Any]) -> AnySection:
        """The same with some values replaced, taken as they are."""
        copy = type(self).model_construct(**{**self.__dict__, **update})
        object.__setattr__(copy, "model_fields_set", self.model_fields_set | frozenset(update))
        return copy

    def model_dump(self, *, by_alias: bool = False, mode: str = "python") -> dict[str, Any]:
        """The values as plain dicts and lists, by field name or YAML key."""
        names = {name: (field.alias or name) if by_alias else name for name, field in self.model_fields.items()}
        return {key: dump(getattr(self, name), by_alias=by_alias) for name, key in names.items()}

    def model_dump_json(self) -> str:
        """The values as JSON, by field name."""
        import json

        return json.dumps(self.model_dump(), ensure_ascii=False, separators=(",", ":"))

    def __setattr__(self, name: str, value: Any = None) -> NoReturn:
        raise AttributeError(f"a recipe is frozen: {type(self).__name__}.{name} cannot be changed")

    __delattr__ = __setattr__

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *self.__dict__.values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"

    def __reduce__(self) -> Any:
        return rebuilt, (type(self), dict(self.__dict__), self.model_fields_set)


def rebuilt(kind: type[Section], values: dict[str, Any], given: frozenset[str]) -> Section:
    """A pickled or copied section."""
    section = kind.model_construct(**values)
    object.__setattr__(section, "model_fields_set", given)
    return section


def dump(value: Any, *, by_alias: bool) -> Any:
    """A field's value as plain dicts and lists."""
    if isinstance(value, Section):
        return value.model_dump(by_alias=by_alias)
    if isinstance(value, tuple):
        return [dump(item, by_alias=by_alias) for item in value]
    return thaw(value)
