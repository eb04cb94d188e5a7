"""`type: alpaca` and its relatives: instruction, perhaps input, and output in a fixed prompt, without a chat template.

The prompts are the data sets' own, known by heart by the models trained on them: a comma more is another prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

from ftkit.data.formats.fields import Formatter, text_field
from ftkit.data.values import Row, Segment, Segments
from ftkit.recipe.section.data import DatasetSection

WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request."
)
WITHOUT_INPUT = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request."
)


@dataclass(frozen=True)
class Prompt:
    """The text around the fields.

    Args:
        with_input, without_input: `{instruction}`, `{input}` and `{system}` are filled in.
        opening: stands in front, with `{system}` filled in, unless there is no system text.
        system_with_input, system_without_input: the system text of rows and recipes that give none.
    """

    with_input: str
    without_input: str
    opening: str
    system_with_input: str = WITH_INPUT
    system_without_input: str = WITHOUT_INPUT


INSTRUCT = Prompt(
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n",
    "### Instruction:\n{instruction}\n\n### Response:\n",
    "{system}\n\n",
)
CHAT = Prompt("USER: {instruction}\n{input}\nASSISTANT:", "USER: {instruction}\nASSISTANT:", "{system}\n")
CHATML = Prompt(
    "<|im_start|>user\n{instruction}\n{input}<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\n{instruction}<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\n{system}<|im_end|>\n",
)
PHI = Prompt(
    "<|user|>\n{instruction}<|end|>{input}<|assistant|>",
    "<|user|>\n{instruction}<|end|><|assistant|>",
    "<|system|>\n{system}<|end|>\n",
)
CONTEXT = Prompt(
    "Context: {input}\n\nQuestion: {instruction}\n\nAnswer: ",
    "Question: {instruction}\n\nAnswer: ",
    "{system}\n\n",
    "",
    "",
)


@dataclass(frozen=True)
class AlpacaFormat:
    """Rows of instruction, input, output.

    Args:
        instruction, input, output, system: column names; a row's system text replaces the prompt's own first line.
        system_prompt: replaces the prompt's first line in every row.
    """

    prompt: Prompt
    instruction: str = "instruction"
    input: str = "input"
    output: str = "output"
    system: str = "system"
    system_prompt: str | None = None

    def __call__(self, row: Row) -> Segments:
        """The prompt, hidden, and the output, trained. A missing, null or blank input takes the prompt without one."""
        instruction = text_field(row, self.instruction)
        given = text_field(row, self.input, optional=True)
        prompt = self.prompt
        if given.strip():
            template, default = prompt.with_input, prompt.system_with_input
        else:
            template, default = prompt.without_input, prompt.system_without_input
        system = text_field(row, self.system, optional=True) or self.system_prompt or default
        opening = prompt.opening.format(system=system) if system else ""
        body = template.format(system=system, instruction=instruction, input=given)
        answer = text_field(row, self.output)
        return Segments((Segment(opening + body, train=False), Segment(answer, train=True)), row.where)


def build(dataset: DatasetSection) -> Formatter:
    """`alpaca`."""
    return _build(dataset, INSTRUCT, "instruction", "output")


def build_chat(dataset: DatasetSection) -> Formatter:
    """`alpaca:chat`, `alpaca_chat`: the same fields in a USER/ASSISTANT prompt."""
    return _build(dataset, CHAT, "instruction", "output")


def build_chatml(dataset: DatasetSection) -> Formatter:
    """`alpaca:chatml`: the same fields between ChatML's markers."""
    return _build(dataset, CHATML, "instruction", "output")


def build_phi(dataset: DatasetSection) -> Formatter:
    """`alpaca:phi`: the same fields between Phi's markers."""
    return _build(dataset, PHI, "instruction", "output")


def build_context(dataset: DatasetSection) -> Formatter:
    """`context_qa`: context, question and answer."""
    return _build(dataset, CONTEXT, "question", "answer", input_="context")


def build_question_answer(dataset: DatasetSection) -> Formatter:
    """`alpaca_chat.load_qa`: question and answer."""
    return _build(dataset, CHAT, "question", "answer")


def build_gpteacher(dataset: DatasetSection) -> Formatter:
    """`gpteacher`: the output is called response."""
    return _build(dataset, INSTRUCT, "instruction", "response")


def build_open_orca(dataset: DatasetSection) -> Formatter:
    """`alpaca_w_system.load_open_orca`: system_prompt, question, response."""
    return _build(dataset, INSTRUCT, "question", "response", system="system_prompt")


def _build(
    dataset: DatasetSection,
    prompt: Prompt,
    instruction: str,
    output: str,
    *,
    input_: str = "input",
    system: str = "system",
) -> AlpacaFormat:
    return AlpacaFormat(
        prompt,
        instruction=dataset.field_instruction or instruction,
        input=dataset.field_input or input_,
        output=dataset.field_output or output,
        system=dataset.field_system or system,
        system_prompt=dataset.system_prompt,
    )
