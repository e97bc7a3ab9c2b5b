"""Folders in Hugging Face's format: the numbers of transformers, both ways, and every fault named."""

import dataclasses
import hashlib
import json
import shutil

import numpy as np
import pytest
import tiny_models
from refusals import raises
from tiny_models import CASES, GOLDEN, NEW, STORED

import minigrad as mg
from minigrad.models import GPT2, CausalLM, GPT2Config, Llama, LlamaConfig, RopeScaling, from_pretrained
from minigrad.models.hub_config import HubConfig
from minigrad.serialization import CheckpointError, load_safetensors, safetensors_header, save_safetensors

LLAMA = LlamaConfig(vocab_size=61, block_size=96, n_layer=2, n_head=4, n_kv_head=2, n_embd=16, n_inner=24)


def logits(model: CausalLM) -> np.ndarray:
    with mg.no_grad():
        return model(mg.tensor(tiny_models.tokens())).numpy()


def greedy(model: CausalLM, **options) -> list[int]:
    return model.generate(mg.tensor(tiny_models.tokens()[:1, :6]), NEW, do_sample=False, **options).tolist()[0]


def assert_same(model: CausalLM, want) -> None:
    """float32 on both sides, and logits of size 10: they agree to 1e-4, and so do all choices among them."""
    np.testing.assert_allclose(logits(model), want["logits"], rtol=0, atol=1e-4)
    assert greedy(model) == want["greedy"] and greedy(model, repetition_penalty=1.3) == want["penalised"]


# ---------------------------------------------------------------------- as transformers computes


@pytest.mark.parametrize("name", STORED)
def test_a_stored_folder_gives_the_stored_numbers(name: str) -> None:
    model = from_pretrained(GOLDEN / name)
    assert not any(module.training for module in model.modules())
    assert {p.dtype for p in model.parameters()} == {mg.float32}
    want = tiny_models.stored(name)
    assert len(set(want["greedy"])) > 12  # otherwise equal tokens would say little
    assert_same(model, want)


@pytest.fixture(scope="module", params=CASES)
def theirs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A folder that transformers wrote."""
    pytest.importorskip("transformers", reason="transformers is not installed; the stored folders were compared")
    folder = tmp_path_factory.mktemp("theirs") / request.param
    tiny_models.write(request.param, folder, "10KB" if request.param in ("llama", "gpt2-untied") else "10MB")
    return folder


def test_a_folder_of_transformers_gives_its_numbers_and_back(theirs, tmp_path) -> None:
    model = from_pretrained(theirs)
    assert type(model) is (GPT2 if theirs.name.startswith("gpt2") else Llama)
    assert safetensors_header(next(theirs.glob("*.safetensors"))).tensors
    want = tiny_models.computed(theirs)
    assert_same(model, want)
    for size in ("10KB", "5GB"):
        model.save_pretrained(tmp_path / size, max_shard_size=size)
        assert (len(list((tmp_path / size).glob("*.safetensors"))) > 1) == (size == "10KB")
        again = tiny_models.computed(tmp_path / size)
        np.testing.assert_array_equal(again["logits"], want["logits"])  # the weights are the same bits
        assert again["greedy"] == want["greedy"]


def test_transformers_finds_all_weights_where_it_expects_them(tmp_path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    for model in (GPT2(GPT2Config(61, 96, 1, 2, 16, bias=False, tied=False)), Llama(LLAMA)):
        folder = tmp_path / model.model_types[0]
        model.save_pretrained(folder)
        other, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert not any(info.values()), info
        ids = tiny_models.tokens()
        found = other(other.dummy_inputs["input_ids"].new_tensor(ids)).logits.detach().numpy()
        np.testing.assert_allclose(found, logits(model), rtol=0, atol=1e-4)


# ---------------------------------------------------------------------- what may differ between folders


@pytest.fixture
def folder(tmp_path):
    """A copy of a stored GPT-2, in one file."""
    GPT2.from_pretrained(GOLDEN / "gpt2").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def change_config(folder, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_weights(folder, change) -> None:
    arrays = dict(load_safetensors(folder / "model.safetensors"))
    change(arrays)
    save_safetensors(folder / "model.safetensors", arrays)


def test_names_without_the_prefix_and_old_buffers(folder) -> None:
    """As the original files of GPT-2 are."""

    def change(arrays) -> None:
        for name in list(arrays):
            arrays[name.removeprefix("transformer.")] = arrays.pop(name)
        arrays["h.0.attn.bias"] = np.tril(np.ones((1, 1, 96, 96), np.uint8))
        arrays["h.1.attn.masked_bias"] = np.array(-1e4, np.float32)

    want = tiny_models.stored("gpt2")
    change_weights(folder, change)
    assert_same(from_pretrained(folder), want)


def test_a_tied_head_may_be_stored_if_it_is_the_embedding(folder) -> None:
    change_weights(folder, lambda a: a.update({"lm_head.weight": a["transformer.wte.weight"].copy()}))
    assert_same(from_pretrained(folder), tiny_models.stored("gpt2"))
    change_weights(folder, lambda a: a["lm_head.weight"].__setitem__((3, 4), 9.0))
    raises(
        CheckpointError, r"lm_head.weight is not the token embedding, but by config.json .*", from_pretrained, folder
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_dtypes_on_disk_and_here(folder, dtype: str) -> None:
    weights = {n: p.numpy() for n, p in from_pretrained(folder).state_dict().items()}
    change_weights(folder, lambda a: a.update({n: v.astype(dtype) for n, v in a.items()}))
    for here in (None, "float32", "float64"):
        model = from_pretrained(folder, dtype=here)
        assert {str(p.dtype) for p in model.parameters()} == {here or "float32"}
        for name, p in model.state_dict().items():
            np.testing.assert_array_equal(p.numpy(), weights[name].astype(dtype).astype(here or "float32"))
    assert_same(from_pretrained(folder), tiny_models.stored("gpt2")) if dtype != "float16" else None


def test_bfloat16_is_read_exactly() -> None:
    """A bfloat16 is the upper half of a float32."""
    path = GOLDEN / "llama3" / "model.safetensors"
    entry = safetensors_header(path).tensors["lm_head.weight"]
    raw = path.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little") + entry.begin
    halves = np.frombuffer(raw[begin : begin + 2 * 61 * 16], "<u2").astype("<u4") << 16
    model = Llama.from_pretrained(GOLDEN / "llama3")
    assert model.lm_head is not None
    np.testing.assert_array_equal(model.lm_head.weight.detach().numpy(), halves.view("<f4").reshape(61, 16))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_a_model_of_another_dtype_is_saved_as_it_is(dtype: str, tmp_path) -> None:
    model = from_pretrained(GOLDEN / "smollm2", dtype=dtype)
    model.save_pretrained(tmp_path)
    assert {str(t.dtype) for t in safetensors_header(tmp_path / "model.safetensors").tensors.values()} == {dtype}
    again = from_pretrained(tmp_path, dtype=dtype)
    for p, q in zip(model.parameters(), again.parameters(), strict=True):
        assert p.dtype == q.dtype == dtype and p.detach().numpy().tobytes() == q.detach().numpy().tobytes()


MODELS = [
    (GPT2, GPT2Config(7, 5, 1, 2, 4, dropout=0.25)),
    (GPT2, GPT2Config(7, 5, 2, 2, 4, bias=False, tied=False, n_inner=3, eps=1e-3, eos_token_id=(1, 2))),
    (Llama, LlamaConfig(7, 5, 1, 2, 1, 4, 3, head_dim=4, dropout=0.5, tied=False, mlp_bias=True, bos_token_id=0)),
    (Llama, LlamaConfig(7, 5, 2, 2, 2, 4, 3, rope_base=77.0, rope_scaling=RopeScaling("linear", 2.0), eps=1e-3)),
    (Llama, LlamaConfig(7, 5, 1, 2, 2, 4, 3, rope_scaling=RopeScaling("llama3", 4.0, 1.5, 3.0, 64))),
]


@pytest.mark.parametrize(("kind", "config"), MODELS, ids=["gpt2", "gpt2-no-bias", "llama", "llama-linear", "llama3"])
@pytest.mark.parametrize("size", [100, "5GB"])
def test_saved_and_read_is_the_same_model(kind, config, size, tmp_path) -> None:
    mg.manual_seed(3)
    model = kind(config)
    for p in model.parameters():
        mg.nn.init.normal_(p)
    state = mg.default_generator.state_dict()
    model.save_pretrained(tmp_path, max_shard_size=size)
    found = from_pretrained(tmp_path)
    assert type(found) is type(model) and found.config == model.config
    assert mg.default_generator.state_dict() == state  # no random weights were drawn
    for (name, p), (other, q) in zip(model.named_parameters(), found.named_parameters(), strict=True):
        assert name == other and p.detach().numpy().tobytes() == q.detach().numpy().tobytes()
    assert type(model).from_pretrained(tmp_path, dropout=0.75).config.dropout == 0.75


def test_saving_again_replaces_the_model_and_nothing_else(tmp_path) -> None:
    small, large = GPT2(GPT2Config(7, 5, 1, 2, 4)), GPT2(GPT2Config(9, 5, 2, 2, 4))
    large.save_pretrained(tmp_path, max_shard_size=500)
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "my-model.safetensors").write_text("")
    small.save_pretrained(tmp_path)
    mine = {"config.json", "tokenizer.json", "my-model.safetensors"}
    assert {path.name for path in tmp_path.iterdir()} == mine | {"model.safetensors"}
    large.save_pretrained(tmp_path, max_shard_size="0.5 kb")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert {path.name for path in tmp_path.iterdir()} == mine | {p.name for p in shards} | {
        "model.safetensors.index.json"
    }
    assert shards[-1].name == f"model-{len(shards):05d}-of-{len(shards):05d}.safetensors" and len(shards) > 2
    for shard in shards:
        tensors = safetensors_header(shard).tensors.values()
        assert len(tensors) == 1 or sum(t.end - t.begin for t in tensors) <= 500
    assert from_pretrained(tmp_path).config == large.config


@pytest.mark.parametrize("size", [500, "5GB"])
def test_a_folder_may_have_sums_which_loading_checks(size, tmp_path) -> None:
    model = GPT2(GPT2Config(9, 5, 2, 2, 4))
    model.save_pretrained(tmp_path, max_shard_size=300, checksums=True)
    model.save_pretrained(tmp_path, max_shard_size=size, checksums=True)
    files = {*tmp_path.iterdir()} - {tmp_path / "SHA256SUMS"}
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in files]
    assert sorted((tmp_path / "SHA256SUMS").read_text().splitlines()) == sorted(lines)
    from_pretrained(tmp_path)
    for path in files:
        content = path.read_bytes()
        other = content[:-1] + b" " if path.suffix == ".json" else content[:-1] + bytes([content[-1] ^ 1])
        path.write_bytes(other)
        raises(CheckpointError, f"{path.name}: its sha256 is not the one in SHA256SUMS", from_pretrained, tmp_path)
        path.write_bytes(content)
    model.save_pretrained(tmp_path, max_shard_size=size)
    assert not (tmp_path / "SHA256SUMS").exists() and from_pretrained(tmp_path).config == model.config


def test_a_save_that_fails_leaves_a_folder_that_does_not_load(folder, monkeypatch: pytest.MonkeyPatch) -> None:
    model = from_pretrained(folder)

    def full(*args):
        raise OSError(28, "No space left on device")

    (folder / "SHA256SUMS").write_text("0  config.json\n")
    raises(CheckpointError, "could not be written: .*SHA256SUMS: line 1 is not", model.save_pretrained, folder)
    (folder / "SHA256SUMS").write_text("# config.json\n")
    assert from_pretrained(folder).config == model.config
    monkeypatch.setattr("minigrad.files.durable.write_new_file", full)
    raises(CheckpointError, r"model could not be written: No space left on device", model.save_pretrained, folder)
    raises(CheckpointError, r"config.json: the file is missing", lambda: from_pretrained(folder))


@pytest.mark.parametrize("size", [0, -5, "5", "GB", "1 TB", "0KB", 1.5, True, None])
def test_shard_sizes_that_make_no_sense(size, tmp_path) -> None:
    with pytest.raises(ValueError, match="max_shard_size="):
        GPT2(GPT2Config(7, 5, 1, 2, 4)).save_pretrained(tmp_path / "x", max_shard_size=size)
    assert not (tmp_path / "x").exists()


# ---------------------------------------------------------------------- config.json


def llama_config(tmp_path, **fields) -> LlamaConfig:
    """The configuration of a folder whose ``config.json`` has these fields, as an old or a new transformers wrote."""
    Llama(LlamaConfig(7, 5, 1, 2, 2, 4, 3)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for name in ("rope_theta", "rope_scaling", "head_dim"):
        del config[name]
    (tmp_path / "config.json").write_text(json.dumps({**config, **fields}))
    return Llama.from_pretrained(tmp_path).config


PUBLISHED = {"SmolLM2-135M": 134_515_008, "Qwen3-0.6B": 596_049_920, "Mistral-7B-v0.1": 7_241_732_096}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_give_the_published_numbers_of_parameters(name: str, tmp_path) -> None:
    fields = json.loads((GOLDEN / "published.json").read_text())[name]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    config = LlamaConfig.from_hub(hub := HubConfig(tmp_path), None)
    hub.finish()  # no field is unknown: a warning would fail the test
    one, two = (dataclasses.replace(config, n_layer=n) for n in (1, 2))
    with mg.nn.init.skip_init():  # the memory is never touched
        first, second = (Llama(sizes).num_parameters() for sizes in (one, two))
    assert first + (config.n_layer - 1) * (second - first) == PUBLISHED[name]
    written = {**config.to_hub(), "architectures": fields["architectures"]}
    assert {key: written[key] for key in written.keys() & fields.keys()}.items() <= fields.items()


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
SCALED = RopeScaling("llama3", 8.0, 1.0, 4.0, 64)


ROPES = [
    ({}, 1e4, None),
    ({"rope_theta": 500}, 500.0, None),
    ({"layer_types": ["full_attention"]}, 1e4, None),
    ({"layer_types": None}, 1e4, None),
    ({"rope_theta": 500.0, "rope_scaling": None}, 500.0, None),
    ({"rope_scaling": {"type": "linear", "factor": 2}}, 1e4, RopeScaling("linear", 2.0)),
    ({"rope_theta": 5.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}}, 5.0, SCALED),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}, 5.0, None),
    ({"rope_parameters": {"rope_type": "linear", "rope_theta": 5.0, "factor": 3}}, 5.0, RopeScaling("linear", 3.0)),
]


@pytest.mark.parametrize(("fields", "base", "scaling"), ROPES)
def test_rope_of_old_and_new_files(fields, base: float, scaling, tmp_path) -> None:
    config = llama_config(tmp_path, **fields)
    assert (config.rope_base, config.rope_scaling) == (base, scaling)


def test_dropouts_that_differ_load_with_one_of_ones_own(folder) -> None:
    change_config(folder, attn_pdrop=0.5)
    assert GPT2.from_pretrained(folder, dropout=0.2).config.dropout == 0.2


def test_a_field_that_nobody_knows_is_reported(folder) -> None:
    change_config(folder, attn_twist=3, other=None, third=False)
    with pytest.warns(UserWarning, match=r"config.json: not known here, and without effect: 'attn_twist'$"):
        from_pretrained(folder)


# ---------------------------------------------------------------------- weights that do not fit, and hostile files


def test_all_that_does_not_fit_is_in_one_error(folder) -> None:
    def change(arrays) -> None:
        del arrays["transformer.h.0.ln_1.bias"]
        arrays["transformer.h.1.attn.c_attn.weight"] = arrays["transformer.h.1.attn.c_attn.weight"].T.copy()
        arrays["score.weight"] = np.zeros((2, 16), np.float32)
        arrays["transformer.ln_f.bias"] = np.zeros(16, np.int32)

    change_weights(folder, change)
    error = raises(CheckpointError, "", from_pretrained, folder)
    for part in (
        "missing: h.0.ln_1.bias",
        "unexpected: 'score.weight'",
        "shape: h.1.attn.c_attn.weight is (16, 48), expected (48, 16)",
        "dtype: ln_f.bias is int32, expected a floating one",
    ):
        assert part in str(error)


def test_a_name_with_and_without_prefix_is_refused(folder) -> None:
    change_weights(folder, lambda a: a.update({"ln_f.bias": np.zeros(16, np.float32)}))
    raises(CheckpointError, "'ln_f.bias' is stored twice", lambda: from_pretrained(folder))


SHARD, MISSING = "model-{:05}-of-00004.safetensors", object()


def with_index(folder, changes):
    """A copy of a stored model whose index says other files of weights; None: of no weights."""
    shutil.copytree(GOLDEN / "gpt2", folder)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    files = {} if changes is None else {**index["weight_map"], **changes}
    index["weight_map"] = {name: file for name, file in files.items() if file is not MISSING}
    path.write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize(
    "file",
    ["../model/model-00001-of-00004.safetensors", "/etc/passwd", "..", "a/b.safetensors", "model.bin", "", 3, None,
     "\\\\host\\x.safetensors", ".hidden/../x.safetensors", "model-00001-of-00004.safetensors\n"],
)  # fmt: skip
def test_an_index_cannot_lead_out_of_the_folder(file, tmp_path) -> None:
    model = with_index(tmp_path / "model", {"transformer.ln_f.bias": file})
    raises(CheckpointError, "is not the name of a file in the folder", lambda: from_pretrained(model))


INDEX_CHANGES = [
    ({"transformer.ln_f.bias": SHARD.format(1)}, "'transformer.ln_f.bias' is not in model-00001-of-00004"),
    ({"transformer.ln_f.bias": MISSING}, "'transformer.ln_f.bias' is in .*, but not so in the index"),
    ({"x": SHARD.format(9)}, "model-00009-of-00004.safetensors: the file is missing"),
    (None, "it has no weight_map"),
]


@pytest.mark.parametrize(("changes", "message"), INDEX_CHANGES)
def test_an_index_must_agree_with_its_files(changes, message: str, tmp_path) -> None:
    model = with_index(tmp_path / "model", changes)
    raises(CheckpointError, message, lambda: from_pretrained(model))


HOSTILE = [
    (b"", "config.json"),
    (b"[]", "it is not a JSON object"),
    (b"{}", "the field 'model_type' is missing"),
    (b'{"model_type": "gpt2", "model_type": "llama"}', "appears twice"),
    (b"[" * 100_000, "config.json: nested too deeply"),
    (b'{"n_layer": NaN}', "config.json: 'n_layer': NaN is not JSON"),
    (b'{"a": {"sizes": [1, [2, ' + b"9" * 6000 + b"]]}}", "config.json: 'sizes': a number of 6000 digits"),
    (b'{"model_type": "gpt2", "x": "' + b"a" * (1 << 20) + b'"}', "the limit is 1,048,576"),
]


@pytest.mark.parametrize(("content", "message"), HOSTILE)
def test_hostile_configurations(content: bytes, message: str, folder) -> None:
    (folder / "config.json").write_bytes(content)
    raises(CheckpointError, message, lambda: from_pretrained(folder))


def test_layers_that_the_weights_have_but_the_memory_has_not(folder, monkeypatch) -> None:
    monkeypatch.setattr("minigrad.tools.free_memory.free_memory", lambda device: 10**4)
    raises(CheckpointError, "at least 0.0 billion parameters and need", lambda: from_pretrained(folder))


def test_folders_without_weights(folder) -> None:
    raises(CheckpointError, "a{300} is not a folder", lambda: from_pretrained("a" * 300))
    local = "nowhere is not a folder; models are read from local folders"
    raises(CheckpointError, local, lambda: from_pretrained(folder / "nowhere"))
    (folder / "model.safetensors").unlink()
    neither = "has neither model.safetensors nor model.safetensors.index.json(\n|$)"
    raises(CheckpointError, neither, lambda: from_pretrained(folder))
    (folder / "pytorch_model.bin").write_bytes(b"")
    pickle = "pytorch_model.bin is a pickle, .* convert it to safetensors"
    raises(CheckpointError, pickle, lambda: from_pretrained(folder))
    save_safetensors(folder / "model.safetensors", {})
    raises(CheckpointError, "holds no weights", lambda: from_pretrained(folder))
