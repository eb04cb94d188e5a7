"""`python -m ftkit.train recipe.yml`, under accelerate launch and torchrun too."""

import sys

from ftkit.cli.train import module_main

sys.exit(module_main())
