"""What all tests share."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

settings.register_profile("quick", max_examples=25, derandomize=True, deadline=None)
settings.register_profile(
    "thorough", max_examples=300, deadline=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # started in the background by a shell: every command that a test starts would ignore Ctrl-C, too
    signal.signal(signal.SIGINT, signal.default_int_handler)
