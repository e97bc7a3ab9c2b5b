"""The differentiable operations: one Function class each, formula and derivative in its docstring."""
