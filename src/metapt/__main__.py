"""Run the command by `python -m metapt`."""

import sys

from metapt.cli import main

sys.exit(main())
