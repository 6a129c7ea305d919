"""The vocabulary that workflows and activities share: plain frozen data, the leaf of the project.

This package only re-exports. All of it takes a tenth of a second to import, so whoever wants one light module
names that, as `activities.contracts.characters`; then nothing else is loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from activities.contracts.activities import *  # noqa: F403  # `__all__` there says which
    from activities.contracts.answers import *  # noqa: F403  # `__all__` there says which
    from activities.contracts.base import *  # noqa: F403  # `__all__` there says which
    from activities.contracts.chain import *  # noqa: F403  # `__all__` there says which
    from activities.contracts.characters import *  # noqa: F403  # `__all__` there says which
    from activities.contracts.conversation import *  # noqa: F403  # `__all__` there says which
    from activities.contracts.effects import *  # noqa: F403  # `__all__` there says which
    from activities.contracts.errors import *  # noqa: F403  # `__all__` there says which
    from activities.contracts.images import *  # noqa: F403  # `__all__` there says which
    from activities.contracts.labels import *  # noqa: F403  # `__all__` there says which
    from activities.contracts.paths import *  # noqa: F403  # `__all__` there says which
    from activities.contracts.patterns import *  # noqa: F403  # `__all__` there says which
    from activities.contracts.read_only import *  # noqa: F403  # `__all__` there says which
    from activities.contracts.record_events import *  # noqa: F403  # `__all__` there says which
    from activities.contracts.schemas import *  # noqa: F403  # `__all__` there says which
    from activities.contracts.specs import *  # noqa: F403  # `__all__` there says which
    from activities.contracts.titles import *  # noqa: F403  # `__all__` there says which
else:
    MODULES = (
        "activities", "answers", "base", "chain", "characters", "conversation", "effects", "errors", "images",
        "labels", "paths", "patterns", "read_only", "record_events", "schemas", "specs", "titles",
    )  # fmt: skip

    def __getattr__(name: str) -> Any:
        """Load all of it when the first name is asked for."""
        if not name.startswith("_"):
            for module in MODULES:
                found = import_module(f"{__name__}.{module}")
                globals().update({one: getattr(found, one) for one in found.__all__})
        if name in globals():
            return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
