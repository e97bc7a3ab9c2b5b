"""``minigrad.profiler``: where the time of a program goes (``tools/profiler.py``)."""

from .tools.profiler import Profile as Profile
from .tools.profiler import profile as profile
