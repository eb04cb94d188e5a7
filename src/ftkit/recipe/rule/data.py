"""Rules about data sets, chat templates and packing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ftkit.catalog import TEMPLATES
from ftkit.recipe.dataset_keys import (
    CONVERSATIONS,
    OF_FORMAT,
    OF_THE_HUB,
    changes_learning,
    help_for,
    is_file,
    kind_of,
    unread,
)
from ftkit.recipe.rule.base import Found, Rule, View, error, warning
from ftkit.recipe.rule.optimization import choice

SPLIT = re.compile(r"[\w.\-/]+(\[(-?\d+%?)?:(-?\d+%?)?\])?")
FROM_TOKENIZER = ("tokenizer_default", "jinja")
# Keys of the recipe that only rows of conversations read.
OF_TURNS = (
    *("roles_to_train", "train_on_eos", "chat_template", "chat_template_jinja", "chat_template_kwargs"),
    *("default_system_message", "eot_tokens"),
)
FALLBACK = "tokenizer_default_fallback_"


def nothing_to_train_on(r: View) -> Found:
    """A run needs at least one data set."""
    if not (r.datasets or r.refuses("pretraining_dataset")):
        yield error("datasets", "the key `datasets` is missing", "add `datasets:` with items of `path` and `type`")


def unknown_template(r: View) -> Found:
    """A chat template's name is one of ftkit's own, or says to take the tokenizer's or the recipe's."""
    given = [("chat_template", r.chat_template)]
    given += [(f"{where}.chat_template", dataset.chat_template) for where, dataset in each_dataset(r)]
    for key, name in given:
        plain = (name or "chatml").removeprefix(FALLBACK)
        if plain not in TEMPLATES and plain not in FROM_TOKENIZER and "{" not in plain:
            help = f"{choice(plain, TEMPLATES)}; `tokenizer_default` takes the model's own"
            yield error(key, f"no chat template is called `{plain}`", help)


def jinja_without_template(r: View) -> Found:
    """`chat_template: jinja` announces a template in `chat_template_jinja`."""
    if r.chat_template == "jinja" and not r.chat_template_jinja:
        yield error("chat_template", "chat_template: jinja needs chat_template_jinja", "give the template or its file")


def template_given_twice(r: View) -> Found:
    """A named template and a template in full cannot both be used."""
    if r.chat_template_jinja and r.chat_template not in (None, "jinja"):
        message = f"chat_template names {r.chat_template}, chat_template_jinja brings another"
        yield error("chat_template_jinja", message, "write chat_template: jinja, or take chat_template_jinja out")


def packing_with_group_by_length(r: View) -> Found:
    """Packs are all of one length, so there is nothing left to group."""
    if r.sample_packing and r.group_by_length:
        yield error("group_by_length", "packs cannot be grouped by length: they are all full", "set one to false")


def evaluation_packing_alone(r: View) -> Found:
    """Evaluation in packs while training in single documents gives losses at other sizes of batch; rarely meant."""
    if r.eval_sample_packing and not r.sample_packing:
        message = "evaluation is packed, training is not"
        yield warning("eval_sample_packing", message, "set sample_packing: true, or take it out")


def evaluation_sets_twice(r: View) -> Found:
    """Rows to evaluate on are either held out of the training data or come from data sets of their own."""
    if r.test_datasets and r.val_set_size:
        message = "test_datasets and val_set_size both say what to evaluate on"
        yield error("val_set_size", message, "set val_set_size: 0, or take test_datasets out")


def held_out_share(r: View) -> Found:
    """A whole `val_set_size` counts rows, a fraction is a share of them."""
    size = r.val_set_size
    if size < 0 or (isinstance(size, float) and size >= 1):
        help = f"write {size:.0f} for rows" if size > 1 and size == int(size) else "write a share such as 0.05"
        yield error("val_set_size", f"`val_set_size` is rows (whole) or a share below 1, got {size}", help)


def dataset_listed_twice(r: View) -> Found:
    """The same rows in the same format stand twice, and would be trained on twice."""
    for name in ("datasets", "test_datasets"):
        for index, dataset in enumerate(r[name]):
            if dataset in r[name][:index]:
                yield warning(f"{name}.{index}", f"{dataset.path} is listed twice", "keep one, or set num_epochs: 2")


def evaluated_on_training_rows(r: View) -> Found:
    """A loss on rows the model was trained on says nothing about others."""
    for index, dataset in enumerate(r.test_datasets):
        if dataset in r.datasets:
            message = f"{dataset.path} is trained on and evaluated on"
            yield warning(f"test_datasets.{index}", message, "hold rows out with val_set_size instead")


def key_of_another_type(r: View) -> Found:
    """A data set's type decides which keys of its entry are read; another key would do nothing."""
    for where, dataset in each_dataset(r):
        named = "a type of your own" if isinstance(dataset.type, Mapping) else f"type: {dataset.type}"
        for key in unread(dataset):
            message = f"`{key}` has no effect on {named if dataset.type else 'a data set without a type'}"
            say = error if changes_learning(key, getattr(dataset, key)) else warning
            yield say(f"{where}.{key}", message, help_for(dataset.type, key))


def key_of_conversations(r: View) -> Found:
    """What is said of turns and chat templates, where every data set is plain text, would do nothing."""
    kinds = {kind_of(dataset.type) for _, dataset in each_dataset(r)}
    if kinds and kinds <= OF_FORMAT.keys() - CONVERSATIONS:
        for key in OF_TURNS:
            if r.gives(key) and r[key]:
                message = f"`{key}` has no effect: no data set holds conversations"
                yield warning(key, message, "take it out, or set type: chat_template")


def hub_key_of_a_file(r: View) -> Found:
    """Configurations and revisions are the hub's; a file has neither."""
    for where, dataset in each_dataset(r):
        for key in OF_THE_HUB:
            if getattr(dataset, key) and is_file(dataset.path):
                message = f"`{key}` has no effect on a file, got {dataset.path}"
                yield warning(f"{where}.{key}", message, "take it out")


def roles_and_inputs(r: View) -> Found:
    """`train_on_inputs: true` trains every turn, `roles_to_train` some of them."""
    if r.train_on_inputs and r.roles_to_train != ("assistant",):
        message = "train_on_inputs: true trains every role, roles_to_train only some"
        yield error("roles_to_train", message, "take train_on_inputs out")


def split_is_readable(r: View) -> Found:
    """A split is a name, or a name and a slice: train, train[:10%], train[100:200]."""
    for where, dataset in each_dataset(r):
        if dataset.split and not all(SPLIT.fullmatch(part.strip()) for part in dataset.split.split("+")):
            yield error(f"{where}.split", f"not a split, got {dataset.split}", "write train, train[:10%] or a+b")


def weight_is_positive(r: View) -> Found:
    """The weight of a data set is its share in the mixture."""
    for where, dataset in each_dataset(r):
        if dataset.weight is not None and dataset.weight <= 0:
            message = f"`weight` must be above 0, got {dataset.weight:g}"
            yield error(f"{where}.weight", message, "take the data set out if it is not wanted")


def shards_in_range(r: View) -> Found:
    """`shards` cuts a data set into so many parts, of which one is used."""
    for where, dataset in each_dataset(r):
        if dataset.shards is not None and dataset.shards < 1:
            yield error(f"{where}.shards", f"`shards` must be at least 1, got {dataset.shards}", "take it out")


def each_dataset(r: View) -> Iterator[tuple[str, Any]]:
    """(dotted path, data set) of all data sets, for training and for evaluation."""
    for name in ("datasets", "test_datasets"):
        for index, dataset in enumerate(r[name]):
            yield f"{name}.{index}", dataset


RULES: tuple[Rule, ...] = (
    nothing_to_train_on,
    unknown_template,
    jinja_without_template,
    template_given_twice,
    packing_with_group_by_length,
    evaluation_packing_alone,
    evaluation_sets_twice,
    held_out_share,
    dataset_listed_twice,
    evaluated_on_training_rows,
    key_of_another_type,
    key_of_conversations,
    hub_key_of_a_file,
    roles_and_inputs,
    split_is_readable,
    weight_is_positive,
    shards_in_range,
)
