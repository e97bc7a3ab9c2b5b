"""LoRA (Hu et al. 2021): a frozen model learns in products of two thin matrices beside the weights of its layers.

names = lora.wrap(model, ["c_attn", "c_proj"], rank=8)
optimizer = AdamW([p for p in model.parameters() if p.requires_grad])
...
lora.save(model, "adapter.safetensors")     # the difference only
lora.merge(model)                           # the layers are as they were, with other weights
"""

import math
from collections.abc import Iterable
from typing import Any

from ..autograd import no_grad
from ..creation import empty, tensor, zeros
from ..errors import bad_value, check_float, check_int
from ..files.durable import StrPath
from ..serialization import load_safetensors, save_safetensors
from ..tensor import Tensor
from . import functional as F, init
from .layers import Linear
from .module import Module, Parameter, unmodified


class LoRALinear(Linear):
    """y = x W^T + b + (alpha / rank) dropout(x) A^T B^T: (..., in_features) -> (..., out_features).

    Weight and bias are those of the layer that it takes the place of, under their names. ``lora_A`` (rank, in) begins
    as the weight of a Linear, ``lora_B`` (out, rank) as zeros, so training starts from the old outputs.
    """

    def __init__(self, linear: Linear, rank: int, alpha: float, dropout: float = 0.0) -> None:
        with init.skip_init():
            super().__init__(linear.in_features, linear.out_features, bias=False)
        self.weight: Parameter = linear.weight
        self.bias: Parameter | None = linear.bias
        self.train(linear.training)
        self.rank: int = check_int("rank", rank, 1, min(linear.in_features, linear.out_features))
        self.dropout: float = check_float("dropout", dropout, below=1.0)
        made: dict[str, Any] = {"dtype": linear.weight.dtype, "device": linear.weight.device}
        self.lora_A: Parameter = Parameter(empty(rank, linear.in_features, **made))
        init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.lora_B: Parameter = Parameter(zeros(linear.out_features, rank, **made))
        self.lora_alpha: Tensor
        self.register_buffer("lora_alpha", tensor(check_float("alpha", alpha), **made))

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        low = F.linear(F.dropout(x, self.dropout, self.training), self.lora_A)
        return F.linear(x, self.weight, self.bias) + F.linear(low, self.lora_B) * (self.lora_alpha / self.rank)

    def merged(self) -> Linear:
        """A Linear with the same parameters, to whose weight the product is added."""
        with init.skip_init(), no_grad():
            linear = Linear(self.in_features, self.out_features, bias=False)
            linear.weight, linear.bias, linear.training = self.weight, self.bias, self.training
            linear.weight.add_(self.lora_B @ self.lora_A * (self.lora_alpha / self.rank))
        return linear


def layers(model: Module, asked_by: str = "") -> dict[str, LoRALinear]:
    """The layers of a model that learn so, by name. ValueError for none where a function ``asked_by`` needs some."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, LoRALinear)}
    if asked_by and not found:
        raise bad_value(f"lora.{asked_by}: the model has no LoRA layers; lora.wrap makes some")
    return found


def wrap(
    model: Module, names: Iterable[str], rank: int = 8, alpha: float = 16.0, dropout: float = 0.0
) -> dict[str, LoRALinear]:
    """Put a `LoRALinear` in the place of chosen ``nn.Linear``, freeze all else, and return the new layers by name.

    Args:
        model: changed in place. Tensors keep their names and ids.
        names: of modules, or how names end: ``"c_attn"`` chooses it in each block.
        rank: of the change of each weight.
        alpha: the change is multiplied by alpha / rank.
        dropout: probability, of what goes into the change, in training.

    Raises ValueError if a name chooses nothing, or something else than a plain ``nn.Linear``; for weights that another
    module shares (tied) or that the model reads without a call, whose change would be lost; and for a wrapped model.
    """
    if layers(model):
        raise bad_value("lora.wrap: the model has LoRA layers; merge it first")
    chosen = _chosen(model, names, rank, alpha, dropout)
    _place(model, chosen)
    return dict(chosen.values())


def _chosen(
    model: Module, names: Iterable[str], rank: int, alpha: float = 16.0, dropout: float = 0.0
) -> dict[int, tuple[str, LoRALinear]]:
    """The new layers and their names, by the ids of the Linear layers that are still in their place."""
    modules = dict(model.named_modules())
    chosen: dict[int, tuple[str, LoRALinear]] = {}
    tied = {id(p) for _, p, again in model._named_tensors("_parameters", "") if again}
    for ending in [names] if isinstance(names, str) else names:
        found = {name: m for name, m in modules.items() if name and f".{name}".endswith(f".{ending}")}
        if not found:
            linears = sorted({name.rpartition(".")[2] for name, m in modules.items() if type(m) is Linear})
            raise bad_value(f"lora.wrap: no module {ending!r}; there are Linear layers {', '.join(linears)}")
        for name, module in found.items():
            if type(module) is not Linear or not unmodified(module):
                raise bad_value(f"lora.wrap: {name} is a {type(module).__name__}; expected an nn.Linear without hooks")
            if id(module.weight) in tied or getattr(model, "_head", None) is module:
                raise bad_value(f"lora.wrap: the weight of {name} is read elsewhere, too, and would not change there")
            chosen[id(module)] = name, LoRALinear(module, rank, alpha, dropout)
    return chosen


def _place(model: Module, chosen: dict[int, tuple[str, LoRALinear]]) -> None:
    model.requires_grad_(False)
    _replace(model, {key: layer for key, (_, layer) in chosen.items()})


def merge(model: Module) -> None:
    """Add all changes to their weights, and put plain ``nn.Linear`` back.

    Outputs stay the same within rounding. All weights stay frozen; ``model.requires_grad_()`` ends that. ValueError
    for a model without LoRA layers.
    """
    _replace(model, {id(layer): layer.merged() for layer in layers(model, "merge").values()})


def save(model: Module, path: StrPath) -> None:
    """Write the matrices A and B, and alpha, to one safetensors file. ValueError for a model without LoRA layers."""
    layers(model, "save")
    save_safetensors(path, {name: value for name, value in model.state_dict().items() if ".lora_" in name})


def load(model: Module, path: StrPath) -> None:
    """Take over what `save` wrote; a model without LoRA layers gets those of the file.

    Raises:
        CheckpointError: the file is damaged.
        ValueError: it lists all names that are missing, unexpected or of another shape.
    """
    state, new, layered = load_safetensors(path), {}, Module()
    found = [name.removesuffix(".lora_A") for name in state if name.endswith(".lora_A")]
    if found and not layers(model):
        new = _chosen(model, found, len(state[f"{found[0]}.lora_A"]))
    layered._modules.update(layers(model) or dict(new.values()))
    wanted = [name for name in layered.state_dict() if ".lora_" in name]
    problems = [f"missing: {name}" for name in wanted if name not in state]
    problems += [f"unexpected: {name}" for name in state if name not in wanted]
    if problems or not found:
        raise bad_value("\n  ".join([f"lora.load: {path} does not fit the model:", *problems]))
    (layered if new else model).load_state_dict(state, strict=False)  # or an error, and the model is as it was
    if new:
        _place(model, new)


def _replace(model: Module, new: dict[int, Any]) -> None:
    """Put other modules into the place of some, by their ids, wherever they are."""
    for module in [*model.modules()]:
        for key, child in [*module.named_children()]:
            if id(child) in new:
                setattr(module, key, new[id(child)])
