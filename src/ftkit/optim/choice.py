"""What a name in the catalog stands for: a constructor and its options, before any parameter exists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.optim import Optimizer

Groups = Sequence[Mapping[str, Any]]  # from `build_groups`


@dataclass(frozen=True, slots=True)
class Choice:
    """An optimizer as a recipe names it.

    Args:
        constructor: takes parameter groups and keyword options.
        defaults: options from the recipe's own keys (`adam_beta1` ...); `optim_args` win over them.
        fixed: options that the name itself says, such as the bits of a state; `optim_args` may not touch them.
        elementwise: each number of a parameter is stepped by itself; False for what looks at whole matrices.
        shardable: it can step parameters that FSDP2 has shared out.
    """

    constructor: Callable[..., Optimizer]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    elementwise: bool = True
    shardable: bool = True
