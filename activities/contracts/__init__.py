"""The vocabulary that workflows and activities share: plain frozen data, the leaf of the project."""

from activities.contracts.activities import *  # noqa: F403
from activities.contracts.answers import *  # noqa: F403  # this package only re-exports
from activities.contracts.characters import *  # noqa: F403
from activities.contracts.conversation import *  # noqa: F403
from activities.contracts.data import *  # noqa: F403
from activities.contracts.effects import *  # noqa: F403
from activities.contracts.errors import *  # noqa: F403
from activities.contracts.images import *  # noqa: F403
from activities.contracts.paths import *  # noqa: F403
from activities.contracts.patterns import *  # noqa: F403
from activities.contracts.read_only import *  # noqa: F403
