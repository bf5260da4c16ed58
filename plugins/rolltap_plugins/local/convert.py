"""`python -m rolltap_plugins.local.convert GGUF FOLDER`: a quantized Llama as a folder of safetensors.

Prints how far it is, in percent, one number a line. Safe against being killed and against being run twice at once:
the folder appears whole or not at all, and whoever comes second waits and finds it done.
"""

import shutil
import sys
import tempfile
from pathlib import Path


def convert(gguf: Path, target: Path) -> None:
    """Convert, unless it has been done already."""
    from filelock import FileLock  # noqa: PLC0415  comes with torch

    with FileLock(target.with_name(f".{target.name}.lock")):
        if target.is_dir():
            return
        prefix = f".{target.name}.part-"
        for left_over in target.parent.glob(
            f"{prefix}*"
        ):  # of a conversion that was killed: the lock is ours
            shutil.rmtree(left_over)
        part = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
        try:
            _write(gguf, part)
            part.chmod(0o755)
            part.rename(target)
        except BaseException:
            shutil.rmtree(part)
            raise


def _write(gguf: Path, folder: Path) -> None:
    """Save model, generation config, tokenizer and chat template.

    A model read from GGUF carries a quantization entry in its config, with which the saved folder would not load:
    so its weights go into a fresh model without that entry.
    """
    _tell(2)
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    _tell(15)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.save_pretrained(folder)
    _tell(30)
    quantized = LlamaForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    _tell(80)
    entries = quantized.config.to_dict()
    del entries["quantization_config"]
    with torch.device("meta"):  # no memory and no random numbers for weights that are replaced at once
        model = LlamaForCausalLM(LlamaConfig.from_dict(entries))
    model.load_state_dict(quantized.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = quantized.generation_config
    _tell(90)
    model.save_pretrained(folder)
    _tell(100)


def _tell(percent: int) -> None:
    print(percent, flush=True)  # noqa: T201  the parent reads it


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
