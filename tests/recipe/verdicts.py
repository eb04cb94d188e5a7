"""The verdict on every recipe of the corpus: compared with verdicts.tsv by a test, renewed by running this file.

PYTHONPATH=src python tests/recipe/verdicts.py [CORPUS]
"""

import os
import sys
from pathlib import Path

from ftkit.recipe import check_recipe

SNAPSHOT = Path(__file__).with_name("verdicts.tsv")
HEADER = "file\tverdict\terrors\twhy each must be an error and not a warning"
# Why a finding of this code must stop a run.
WHY = {
    "batch-size": "no number of accumulation steps gives this batch",
    "duplicate-key": "two values, and no telling which is meant",
    "fsdp-8bit": "8-bit weights cannot be sharded by FSDP",
    "migration-clash": "the old key and the new one say different things",
    "missing": "there is no model to train",
    "nothing-to-train-on": "there is no data to train on",
    "placeholder": "the value was never filled in",
    "quantized-without-adapter": "quantized weights have no gradients, so nothing would be trained",
    "refused": "the run would not do what {refused} ask for",
    "syntax": "the file is not YAML, so its keys cannot be told",
    "type": "the value cannot be read as what the key is",
    "unknown-key": "the key would be silently ignored, and with it what its author wanted",
    "unknown-type": "rows of an unknown format cannot be read",
    "load-4bit-and-8bit": "weights cannot be stored in two ways",
}


def recipes(corpus: Path) -> list[Path]:
    """All recipes of the corpus."""
    return sorted((corpus / "recipes").glob("*/*.y*ml"))


def verdict(path: Path) -> str:
    """One line about a recipe; it holds no text of the recipe."""
    _, problems = check_recipe(path)
    codes = sorted({problem.code for problem in problems if problem.severity == "error"})
    refused = {
        problem.key.split(".")[0] for problem in problems if (problem.code, problem.severity) == ("refused", "error")
    }
    why = "; ".join(WHY.get(code, "?").format(refused=", ".join(sorted(refused))) for code in codes)
    return "\t".join((f"{path.parent.name}/{path.name}", "error" if codes else "ok", ",".join(codes), why)).rstrip()


def main() -> None:
    """Write the snapshot anew."""
    default = os.environ.get("FTKIT_CORPUS", Path(__file__).resolve().parents[3] / "shared")
    corpus = Path(sys.argv[1] if len(sys.argv) > 1 else default)
    lines = [HEADER, *(verdict(path) for path in recipes(corpus))]
    SNAPSHOT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines) - 1} verdicts written to {SNAPSHOT}")


if __name__ == "__main__":
    main()
