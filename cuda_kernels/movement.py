"""Rearranging memory, as ``minigrad.cpu_kernels.movement``: views are metadata, the rest is strided copies."""

from __future__ import annotations

from .strided_copy import copy_into as copy_into
