"""The sandbox in which a model's code runs."""

from activities.code.activity import UNUSABLE, CodeActivities, step_code
from activities.code.pool import NoInterpreter, Pool

__all__ = ["UNUSABLE", "CodeActivities", "NoInterpreter", "Pool", "step_code"]
