"""`python -m ops.bench`."""

from __future__ import annotations

import sys

from ops.bench.run import main

sys.exit(main())
