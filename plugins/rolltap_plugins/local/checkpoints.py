"""New weights for a model that runs: safetensors, checked against the live network before anything of it changes."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from rolltap import BadRequest

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

Replacements = list[tuple["torch.Tensor", "torch.Tensor"]]
"""Each tensor of the live network, and what takes its place: same shape, dtype and device."""


def read_checkpoint(path: Path, network: "PreTrainedModel") -> Replacements:
    """Read a safetensors file, or a folder of them, as `save_pretrained` writes them. Takes seconds; for any thread.

    A tensor that the network has under several names (tied embeddings) may be saved under one of them or all.
    Raises `BadRequest` that names what is missing, unknown or of another shape; the network is as it was.
    """
    saved = _load(path)
    names: dict[int, list[str]] = {}
    state = network.state_dict(keep_vars=True)
    for name, tensor in state.items():
        names.setdefault(id(tensor), []).append(name)
    strangers = sorted(saved.keys() - state.keys())
    if strangers:
        raise _unfit(path, f"has the tensor {strangers[0]}, which the served model has not")
    return [
        (state[shared[0]], _replacement(path, saved, state[shared[0]], shared)) for shared in names.values()
    ]


def _load(path: Path) -> "dict[str, torch.Tensor]":
    from safetensors import SafetensorError  # noqa: PLC0415  comes with transformers
    from safetensors.torch import load_file  # noqa: PLC0415  imports torch

    saved: dict[str, torch.Tensor] = {}
    for file in _files(path):
        try:
            saved |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise BadRequest(f"cannot read weights from {file}: {error}", param="path") from error
    return saved


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    index = path / "model.safetensors.index.json"
    if index.is_file():
        return [path / file for file in sorted(set(json.loads(index.read_bytes())["weight_map"].values()))]
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise BadRequest(
            f"no weights in {path}: it has no file that ends in .safetensors; save them with save_pretrained",
            param="path",
        )
    return files


def _replacement(
    path: Path, saved: "dict[str, torch.Tensor]", live: "torch.Tensor", names: list[str]
) -> "torch.Tensor":
    """What was saved under one of a tensor's names, as a copy that no file stands behind."""
    import torch

    given = [name for name in names if name in saved]
    if not given:
        raise _unfit(path, f"lacks the tensor {names[0]}")
    first = saved[given[0]]
    for name in given:
        if saved[name].shape != live.shape:
            shapes = f"{tuple(saved[name].shape)}, and in the served model {tuple(live.shape)}"
            raise _unfit(path, f"has {name} of shape {shapes}")
        if not torch.equal(saved[name], first):
            raise _unfit(
                path,
                f"has other values in {name} than in {given[0]}, which are one tensor in the served model",
            )
    return first.to(live.device, live.dtype, copy=True)


def _unfit(path: Path, what: str) -> BadRequest:
    return BadRequest(
        f"the weights in {path} do not fit the served model: the checkpoint {what}; nothing was changed. "
        "Save all of the same architecture with save_pretrained",
        param="path",
    )
