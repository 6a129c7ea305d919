"""The command line's fixtures, and the real server with a worker."""

from tests.client.conftest import agents, data_dir, settings, state_home, temporal, working

__all__ = ["agents", "data_dir", "settings", "state_home", "temporal", "working"]
