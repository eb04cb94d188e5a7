# make demo   environment, then a real QLoRA run on two CPU cores
# make test   environment, then lint, types and all tests
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo test environment check format clean

environment:
	@tools/environment.sh $(VENV)

demo: environment
	$(BIN)/accelerate launch --cpu --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no -m ftkit.train configs/demo.yml

check: environment
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check
	$(BIN)/python -m pytest

format: environment
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) outputs .mypy_cache .ruff_cache .pytest_cache
