"""Tools for looking at a model: pictures, gradient checks, memory, time, and a page on runs.

``minigrad`` offers them to programs. The library itself uses two: models and the train command ask ``step_memory`` and
``free_memory`` whether a run fits.
"""
