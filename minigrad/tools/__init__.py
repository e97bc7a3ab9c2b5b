"""Tools for looking at a model: pictures, gradient checks, memory, time, and a page on runs.

Nothing in the library imports it.
"""
