"""``minigrad.profiler``: where the time of a program goes (``tools/profiler.py``)."""

from .tools.profiler import Profile as Profile, profile as profile
