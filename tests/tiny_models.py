"""Tiny random GPT-2 and Llama models as transformers makes them, and what it computes with them.

The tests compare with transformers where it is installed, and with stored folders and numbers (tests/golden/pretrained)
otherwise.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).parent / "golden" / "pretrained"
VOCAB, BLOCK, NEW = 61, 96, 64

_GPT2 = {"vocab_size": VOCAB, "n_positions": BLOCK, "n_embd": 16, "n_layer": 2, "n_head": 2}
_LLAMA = {
    "vocab_size": VOCAB,
    "max_position_embeddings": BLOCK,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def _rope(theta: float, kind: str = "default", **more: float) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": theta, **more}


def _llama(dtype: str, kind: str = "Llama", **changes: Any) -> tuple[str, dict[str, Any], str]:
    return f"{kind}ForCausalLM", {**_LLAMA, **changes}, dtype


# With these lengths some of the 4 pairs are kept, some blended, some lowered.
_ROPE3 = _rope(500.0, "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
_ROPE3["original_max_position_embeddings"] = 32
_BIASES: dict[str, Any] = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
_SMOLLM2: dict[str, Any] = {"hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 1}
_SMOLLM2 |= {"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0}

# name: (class of transformers, its configuration, dtype on disk)
CASES = {
    "gpt2": ("GPT2LMHeadModel", _GPT2, "float32"),
    "gpt2-untied": ("GPT2LMHeadModel", {**_GPT2, "tie_word_embeddings": False, "n_inner": 24}, "float16"),
    "llama": _llama("float64", num_key_value_heads=4),
    "llama-biases": _llama("float32", head_dim=8, **_BIASES),
    "llama3": _llama("bfloat16", head_dim=8, rope_parameters=_ROPE3, rms_norm_eps=1e-5, eos_token_id=[3, 4]),
    "llama-linear": _llama("float32", rope_parameters=_rope(100.0, "linear", factor=4.0)),
    "smollm2": _llama("bfloat16", rope_parameters=_rope(100000.0), **_SMOLLM2),
    "mistral": _llama("bfloat16", "Mistral", sliding_window=5, head_dim=6, rope_parameters=_rope(100.0)),
    "qwen3": _llama("bfloat16", "Qwen3", head_dim=6, tie_word_embeddings=True),
    "qwen3-biases": _llama("float32", "Qwen3", attention_bias=True, head_dim=4),
}
STORED = {
    "gpt2": "12KB",
    **dict.fromkeys(("llama3", "smollm2", "mistral", "qwen3"), "10MB"),
}  # the largest shard of each


def tokens(B: int = 2, T: int = 12, seed: int = 5) -> np.ndarray:
    """Random ids (B, T), the same on every machine."""
    return np.random.default_rng(seed).integers(0, VOCAB, (B, T))


def write(name: str, folder: Path, max_shard_size: str = "10MB", **changes) -> None:
    """Let transformers make the random model of a case and save it."""
    import torch
    import transformers

    kind, fields, dtype = CASES[name]
    cls = getattr(transformers, kind)
    torch.manual_seed(len(name))
    model = cls(cls.config_class(**{**fields, **changes}))
    with torch.no_grad():
        for key, p in model.named_parameters():
            # Large enough that the tokens are not all alike; norms around 1.
            p.copy_(torch.randn_like(p) * 0.4 + (1.0 if p.ndim == 1 and key.endswith("weight") else 0.0))
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=max_shard_size)


def computed(folder: Path):
    """Logits (2, 12, VOCAB) of `tokens`, and NEW greedy tokens after the first six of the first row, without and with a
    penalty of 1.3, by transformers in float32."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor(tokens())
    with torch.no_grad():
        logits = model(ids).logits.numpy()
        options = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        options["attention_mask"] = torch.ones(1, 6, dtype=torch.int64)
        greedy, penalised = (model.generate(ids[:1, :6], **options, repetition_penalty=x)[0] for x in (1.0, 1.3))
    return {"logits": logits, "greedy": greedy.tolist(), "penalised": penalised.tolist()}


def stored(name: str):
    """What `computed` gave when the fixture was made."""
    found = json.loads((GOLDEN / name / "expected.json").read_text())
    found["logits"] = np.array(found["logits"])
    return found
