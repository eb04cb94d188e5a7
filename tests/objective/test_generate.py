from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from ftkit.model.attention import NAME, register_attention
from ftkit.objective.generate import answer, end_of_turn, prompt_ids
from tiny import tiny_model

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def net_of(folder: Path) -> LlamaForCausalLM:
    register_attention()
    return LlamaForCausalLM.from_pretrained(folder, attn_implementation=NAME)


def test_prompts_are_user_turns_up_to_the_assistant(tokenizer: PreTrainedTokenizerBase) -> None:
    text = tokenizer.decode(prompt_ids(tokenizer, "Hi?")[0])
    assert text == "<|im_start|>user\nHi?<|im_end|>\n<|im_start|>assistant\n"


def test_without_a_template_the_prompt_is_bare_text(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = None
    assert tokenizer.decode(prompt_ids(tokenizer, "Once upon")[0]) == "Once upon"


def test_answers_equal_transformers_own_attention_token_by_token(
    folder: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    reference = LlamaForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    ids = prompt_ids(tokenizer, "What colour is the sky?")
    start = ids.shape[1]
    with torch.no_grad():
        for _ in range(12):
            following = reference(ids).logits[:, -1:].argmax(-1)
            if int(following) == tokenizer.eos_token_id:
                break
            ids = torch.cat([ids, following], dim=1)
    expected = tokenizer.decode(ids[0, start:], skip_special_tokens=True).strip()
    assert answer(net_of(folder), tokenizer, ["What colour is the sky?"], max_new_tokens=12) == [expected]


def test_the_net_is_back_in_its_mode(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    net = net_of(folder).train()
    net.config.use_cache = False
    answer(net, tokenizer, ["a", "b"], max_new_tokens=2)
    assert net.training
    assert net.config.use_cache is False


def test_the_tokenizers_end_of_turn_ends_an_answer(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    net = net_of(folder)
    with torch.no_grad():  # the head says the end of turn to everything
        net.lm_head.weight.zero_()
        net.lm_head.weight[tokenizer.eos_token_id] = net.model.norm.weight
        net.model.embed_tokens.weight.abs_()
    (text,) = answer(net, tokenizer, ["Hi?"], max_new_tokens=20)
    assert len(tokenizer(text).input_ids) < 20


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (TEMPLATE, "<|im_end|>"),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }} <|endoftext|>{% endfor %}", "<|endoftext|>"),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", None),
        (None, None),
    ],
)
def test_the_end_of_a_turn_is_read_off_the_template(
    tokenizer: PreTrainedTokenizerBase, template: str | None, expected: str | None
) -> None:
    tokenizer.chat_template = template
    found = end_of_turn(tokenizer)
    assert (None if found is None else tokenizer.convert_ids_to_tokens(found)) == expected


def test_answers_are_the_same_with_activation_checkpointing(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    net = net_of(folder).train()
    plain = answer(net, tokenizer, ["Hi?"], max_new_tokens=8)
    net.activation_checkpointing_enable({"use_reentrant": False})
    calls: list[int] = []
    net.model.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    assert answer(net, tokenizer, ["Hi?"], max_new_tokens=8) == plain
    assert set(calls[1:]) == {1}, "the cache is used: after the prompt, one token at a time"


def test_answers_under_autocast_come_from_a_mixed_net(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    net = net_of(folder).bfloat16()
    net.model.embed_tokens.float()
    (text,) = answer(net, tokenizer, ["Hi?"], max_new_tokens=4, autocast=torch.bfloat16)
    assert isinstance(text, str)
