"""What tests may say about time. Budgets are benchmarks (tests/scale); here time only tells two ends apart."""

from __future__ import annotations

import time

#: What does not wait for something is over within this many seconds, on a machine that is busy with other things too.
#: What it must not wait for has to take much longer, or the test could not fail.
SOON = 15.0
#: A time to wait for in vain: much longer than SOON, shorter than a test may take.
LONG = 60.0


def seconds_since(began: float) -> float:
    """Return the seconds since a reading of ``time.monotonic()``."""
    return time.monotonic() - began
