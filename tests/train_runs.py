"""Tiny runs of the train command, for its tests."""

from minigrad import distributed, serialization
from minigrad.distributed.train.command import Run
from minigrad.distributed.train.settings import read_settings


def write(folder, **changes):
    """A tiny run on a text of its own; 3 batches an epoch."""
    text = folder / "text.txt"
    text.write_text("".join(chr(97 + (i * i) % 23) for i in range(2 * 3 * 8 + 1)))
    lines = {
        "model": {"n_layer": 2, "n_head": 2, "n_embd": 8, "dropout": 0.0, "checkpoint_blocks": None},
        "data": {"source": f"[{text}]", "tokens": None},
        "training": {"output_dir": folder / "run", "max_steps": 6, "batch_size": 2, "seq_len": 8, "save_interval": 3},
    }
    for key, value in changes.items():
        section = next(name for name in lines if key in lines[name] or name == "training")
        lines[section][key] = value
    path = folder / "config.yaml"
    path.write_text(
        "".join(
            f"{name}:\n" + "".join(f"  {key}: {value}\n" for key, value in values.items() if value is not None)
            for name, values in lines.items()
        )
    )
    return path


def weights(folder, step: int | None = None) -> dict[str, bytes]:
    tensors = serialization.load_checkpoint(folder, step).tensors
    return {f"{file}/{name}": array.tobytes() for file, named in tensors.items() for name, array in named.items()}


def go(comm: distributed.Communicator, path, resume: bool = False) -> Run:
    run = Run(comm, read_settings(path), resume=resume)
    try:
        run.train()
    finally:
        run.trainer.close()
    return run
