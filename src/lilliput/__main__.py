"""`python -m lilliput`, the same as `lilliput`."""

import os
import sys

from lilliput.cli import main

code = main()
if os.environ.get("WORLD_SIZE", "1") != "1":
    from lilliput.training.process_group import exit_process

    exit_process(code)
sys.exit(code)
