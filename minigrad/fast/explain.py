"""Which way runs, module by module, and why not another."""

from typing import Any

from ..device import CPU, plain_families
from ..errors import bad_type
from ..modes import FAST_IS_OFF
from ..nn.module import Module
from ..plans import CallRecorder, Plan, recording


class Explanation(CallRecorder):
    """What ``explain`` recorded: a line for each module that was called, and for each plan that was asked."""

    lines: list[str]

    def __init__(self, model: Module) -> None:
        self.lines, self._depth = [], 0
        self._names = {id(module): name for name, module in model.named_modules()}

    def entered(self, module: Module) -> None:
        """A line for this module."""
        name = self._names.get(id(module))
        self._add(f"{name or ('model' if name == '' else 'another module')}: {type(module).__name__}")
        self._depth += 1

    def left(self, module: Module) -> None:
        """Back in the module that called this one."""
        self._depth -= 1

    def chose(self, module: Module, method: str, plan: Plan | None, against: dict[str, list[str]]) -> None:
        """Lines for the plan that runs and those that were asked before."""
        if plan is not None:
            self._add(f"{method} runs as {plan.name!r}; {plan.equality}")
        for name, reasons in against.items():
            self._add(f"{method} not as {name!r}: {'; '.join(reasons)}")

    def _add(self, line: str) -> None:
        self.lines.append("  " * self._depth + line)

    def __str__(self) -> str:
        return "\n".join(self.lines)

    __repr__ = __str__


def explain(model: Module, *args: Any) -> Explanation:
    """Call ``model(*args)`` and tell which way each of its modules was computed, and why not another::

        print(minigrad.explain(model, tokens))

    Modules within one that a plan computes are not called, so they have no line. The last line names the families of
    kernels that this backend leaves to the plain ones, if any.
    """
    if not isinstance(model, Module):
        raise bad_type(f"explain: the model is a {type(model).__name__}; expected a Module, then its inputs")
    explanation = Explanation(model)
    if FAST_IS_OFF:
        explanation.lines.append("no fast way is tried: MINIGRAD_FAST=0")
    with recording(explanation):
        model(*args)
    device = next((parameter.device for parameter in model.parameters()), CPU)
    if plain := plain_families(device):
        explanation.lines.append(f"of any model, {device.type} leaves to the plain kernels: {', '.join(plain)}")
    return explanation
