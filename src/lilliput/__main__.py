"""`python -m lilliput`, the same as `lilliput`."""

import sys

from lilliput.cli import main

sys.exit(main())
