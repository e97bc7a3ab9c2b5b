"""Which kernels run: ``minigrad.kernels``, MINIGRAD_KERNELS, and the families that are declared plain."""

import os

import pytest
from in_threads import outcomes
from processes import python
from refusals import raises

import minigrad as mg
from minigrad import cpu_kernels, plain_kernels
from minigrad.models import GPT2, GPT2Config


def model():
    return GPT2(GPT2Config(vocab_size=11, block_size=8, n_layer=1, n_head=2, n_embd=16))


def test_kernels_are_chosen_for_a_block_of_one_thread():
    cpu = mg.Device("cpu")
    with mg.kernels("cpu"):
        assert cpu.kernels is cpu_kernels
        with mg.kernels("plain"):
            assert cpu.kernels is plain_kernels
            with mg.kernels("cpu"):
                assert cpu.kernels is cpu_kernels
            seen = outcomes([0], lambda _: cpu.kernels)
        with pytest.raises(RuntimeError), mg.kernels("plain"):
            raise RuntimeError
        assert cpu.kernels is cpu_kernels
    assert seen[0] is (plain_kernels if os.environ.get("MINIGRAD_KERNELS") == "plain" else cpu_kernels)
    raises(ValueError, "kernels: there are no kernels 'numpy'; expected 'plain'", mg.kernels("numpy").__enter__)


def test_backward_computes_with_the_kernels_of_forward():
    x = mg.ones(3, requires_grad=True)
    with mg.kernels("plain"):
        y = (x * x).softmax(0) + x
    nodes = [y.node, *y.node.edges[:1]]
    assert all(node.kernels is plain_kernels for node in nodes)
    assert y.sum().backward()[x].tolist() == pytest.approx([1, 1, 1])


def test_plain_families_are_named():
    with mg.kernels("cpu"):
        assert mg.plain_families() == cpu_kernels.PLAIN_ONLY
        assert str(mg.explain(model(), mg.zeros(1, 4, dtype=mg.int64))).endswith(", ".join(cpu_kernels.PLAIN_ONLY))
    with mg.kernels("plain"):
        assert "attention" in mg.plain_families("cpu")
        told = str(mg.explain(model(), mg.zeros(1, 4, dtype=mg.int64)))
    assert told.endswith(", ".join(plain_kernels.PLAIN_ONLY))


def test_the_environment_chooses_and_plain_kernels_need_no_compiler():
    source = (
        "import sys, minigrad as mg; m = mg.nn.Linear(3, 2); m(mg.ones(4, 3)).sum().backward();"
        "print(mg.Device('cpu').kernels.__name__, 'numba' in sys.modules)"
    )
    done = python("-c", source, env={"MINIGRAD_KERNELS": "plain", "MINIGRAD_DEBUG": "1"})
    assert done.stdout == "minigrad.plain_kernels False\n", done.stderr
    assert "plain: plain kernels: adagrad, " in done.stderr
    done = python("-c", source, env={"MINIGRAD_KERNELS": "cpu", "MINIGRAD_DEBUG": "1"})
    assert done.stdout == "minigrad.cpu_kernels True\n", done.stderr
    assert ("cpu: plain kernels: " in done.stderr) == bool(cpu_kernels.PLAIN_ONLY), done.stderr
    done = python("-c", "import minigrad", env={"MINIGRAD_KERNELS": "fast"})
    assert "there are no kernels 'fast'; expected 'plain'" in done.stderr
