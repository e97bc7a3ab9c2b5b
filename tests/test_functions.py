"""The functions that are methods of Tensor, too: each is the method, whose values tests/ops compares with PyTorch's."""

import inspect
import re

import house
import pytest
from refusals import raises

import minigrad as mg
from minigrad import functions, method_help
from minigrad.autograd import Function
from minigrad.device import CPU
from minigrad.modes import holding, of_thread

FUNCTIONS = {name: getattr(functions, name) for name in functions.__all__ if hasattr(mg.Tensor, name)}
ALIASES = {"subtract": "sub", "multiply": "mul", "divide": "div", "negative": "neg", "absolute": "abs", "clip": "clamp"}
ALIASES |= {"swapdims": "transpose", "moveaxis": "movedim"}


def test_other_names_of_methods_and_of_their_arguments():
    for other, name in ALIASES.items():
        assert getattr(mg.Tensor, other) is getattr(mg.Tensor, name) is getattr(mg, other).__wrapped__
    x = mg.tensor([5, -3])
    assert mg.true_divide(x, 2).tolist() == [2.5, -1.5]
    assert (mg.clamp_min(x, 0).tolist(), mg.clamp_max(x, 0).tolist()) == ([5, 0], [0, -3])
    assert mg.bitwise_left_shift(x, 1).tolist() == [10, -6] and mg.bitwise_right_shift(x, 1).tolist() == [2, -2]


def test_functions_are_the_methods():
    """Those that are not have one argument where the method accepts several, or PyTorch's other names."""
    others = {name for name, f in FUNCTIONS.items() if getattr(f, "__wrapped__", None) is not getattr(mg.Tensor, name)}
    assert others == {"reshape", "broadcast_to", "permute", "flip", "tile", "swapaxes", "bernoulli", "multinomial"}
    assert list(inspect.signature(mg.swapaxes).parameters) == ["x", "axis0", "axis1"]
    x = mg.arange(6).reshape(2, 3)
    assert mg.reshape(x, shape=(3, 2)).tolist() == x.reshape(3, 2).tolist()
    assert mg.swapaxes(x, axis0=0, axis1=1).tolist() == mg.permute(x, dims=(1, 0)).tolist() == x.T.tolist()
    assert mg.flip(x, dims=(0, 1)).tolist() == x.flip(0, 1).tolist()
    assert mg.tile(x, dims=(2, 2)).tolist() == x.tile(2, 2).tolist()
    assert mg.broadcast_to(x, shape=(4, 2, 3)).tolist() == x.expand(4, 2, 3).tolist()


def test_every_function_is_exported():
    assert set(functions.__all__) <= set(mg.__all__)


def test_names_in_all_are_there_once_and_hide_no_type_of_pythons():
    assert len(mg.__all__) == len(set(mg.__all__))
    assert all(hasattr(mg, name) for name in mg.__all__)
    assert not {"bool", "float", "int"} & set(mg.__all__)


@pytest.mark.parametrize("name", ["exp", "softmax", "add", "sum", "matmul", "numel"])
def test_a_function_of_no_tensor_says_what_to_pass(name):
    message = rf"^{name} of a list: expected a tensor; make one with minigrad.tensor\(...\)"
    raises(TypeError, message, getattr(mg, name), [1.0, 2.0])


def test_probabilities_and_weights_have_their_names():
    assert mg.bernoulli(p=mg.ones(3)).tolist() == [1.0] * 3
    assert mg.multinomial(weights=mg.tensor([0.0, 1.0]), num_samples=1).tolist() == [1]


F = mg.nn.functional
EXAMPLES = method_help.read()[1]
METHODS = {f for base in mg.Tensor.__mro__[:-2] for f in vars(base).values() if inspect.isfunction(f)}


def test_help_of_every_method_has_an_example_and_says_what_its_arguments_mean():
    formula = "Softmax: y = e^x / sum(e^x);  dx = y (dy - sum(dy y))."
    assert f"divided by its sum; cast to ``dtype`` first.\n\n{formula}\n\n" in mg.softmax.__doc__
    for f in (*METHODS, *(vars(F)[name] for name in EXAMPLES if name in vars(F) and name != "where")):
        if f.__name__[0] != "_" and f.__name__ not in ("cuda", "pin_memory"):  # which need a GPU
            text, parameters = str(f.__doc__), [*inspect.signature(f).parameters.values()][1:]
            assert text.endswith(f"\n\n>>> {EXAMPLES[f.__name__][1]}") and text.count(">>>") == 1, f
            named = {p.name for p in parameters if p.kind is not p.VAR_POSITIONAL}
            assert f.__name__.endswith("_") or named <= set(re.findall(r"\w+", text.partition(">>>")[0])), f


def test_examples_of_help_are_true_and_run_what_it_says_methods_are_made_of(monkeypatch):
    ran: set[str] = set()
    apply = Function.apply.__func__

    class Kernels:
        def __getattr__(self, name: str):
            ran.update([name] if (house.ROOT / f"cuda_kernels/{name}.py").exists() else [])
            return getattr(CPU.native, name)

    def noted(op, *inputs, **options):
        ran.add(f"{op.__module__.split('.')[2]}.{op.__name__}")
        return apply(op, *inputs, **options)

    monkeypatch.setattr(Function, "apply", classmethod(noted))
    with holding(of_thread.mode, kernels=Kernels()):
        for name, (parts, example) in EXAMPLES.items():
            ran.clear()
            assert repr(eval(example.splitlines()[0], {"minigrad": mg, "F": F})) == example.splitlines()[1], name
            families, listed = {part.partition(".")[0] for part in ran}, set(parts.split())
            assert listed == {part for part in ran if "." in part} | (families & listed), name
            assert {part.partition(".")[0] for part in listed} == families, name
            for family in families & house.FAMILIES:
                where = f"cpu_kernels/{family}" if family not in mg.plain_families() else f"plain_kernels ({family})"
                assert where in (getattr(mg.Tensor, name, None) or getattr(F, name)).__doc__, name
