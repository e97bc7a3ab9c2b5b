"""The table of a module's parameters and buffers."""

import minigrad as mg
from minigrad import nn


def test_summary() -> None:
    m = nn.Sequential(nn.Linear(3, 400, dtype="float64"), nn.BatchNorm1d(400))
    m[0].bias.requires_grad_(False)
    assert m.summary() == (
        "name                   shape     dtype      parameters    memory\n"
        "----------------------------------------------------------------\n"
        "0.weight               (400, 3)  float64         1,200   9.4 KiB\n"
        "0.bias                 (400,)    float64  400 (frozen)   3.1 KiB\n"
        "1.weight               (400,)    float32           400   1.6 KiB\n"
        "1.bias                 (400,)    float32           400   1.6 KiB\n"
        "1.running_mean         (400,)    float32        buffer   1.6 KiB\n"
        "1.running_var          (400,)    float32        buffer   1.6 KiB\n"
        "1.num_batches_tracked  ()        int64          buffer       8 B\n"
        "----------------------------------------------------------------\n"
        "total of Sequential                              2,400  18.8 KiB"
    )


def test_shared_weights_count_once_and_nothing_is_0() -> None:
    m = nn.Module()
    m.a, m.b = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
    m.b.weight = m.a.weight
    assert len(m.summary().splitlines()) == 5 and m.summary().endswith("15    60 B")
    assert nn.ReLU().summary().endswith("0     0 B")
    assert repr(m.summary()) == m.summary() and m.summary()._repr_html_().startswith("<pre>name  ")
    big = nn.Module()
    big.p = nn.Parameter(mg.zeros(1).expand(1024, 1024, 1024))
    assert big.summary().endswith("1,073,741,824  4.0 GiB")
