"""Continues prompts with a language model, sharded by the names of its axes.

The model is a run of `train_lm.py` or a folder as Hugging Face's `transformers` saves it. The prompts are computed at
once; then each step computes one token of every prompt with a key-value cache, in one compiled function.
"""

import argparse
import contextlib
import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from rich.live import Live
from rich.text import Text

import axonym as nym
from axonym import Axis, NamedArray


MAPPING = nym.AxisMapping(
    {"batch": "data", "heads": "model", "mlp": "model", "vocab": "model"},
    uneven="replicate",  # a few prompts need not fill the mesh
)
# By `model_type` of a `config.json`.
MODELS = {"gpt2": "GPT2", "llama": "Llama", "qwen3": "Qwen3", "gemma2": "Gemma2", "mixtral": "Mixtral"}


class Model(Protocol):
    """A language model that decodes with a cache."""

    def init_cache(self, Batch: Axis, KPos: Axis, **options: Any) -> Any: ...

    def decode(self, tokens: NamedArray, cache: Any) -> tuple[NamedArray, Any]: ...


class Sampling(NamedTuple):
    """How tokens are drawn; None takes the most probable ones.

    Attributes:
        temperature: What logits are divided by.
        top_k: How many of the most probable tokens may be drawn, or None for all.
        top_p: The probability that the most probable tokens have together, of which one is drawn, or None for all.
    """

    temperature: Any
    top_k: Any
    top_p: Any


def make_sampling(temperature: float, top_k: int | None, top_p: float) -> Sampling | None:
    """Returns how to draw tokens, with numbers in arrays, so that programs are compiled once for all of them."""
    if temperature < 0 or (top_k is not None and top_k < 1) or not 0 < top_p <= 1:
        raise ValueError(
            "the temperature must not be negative, top-k is positive, and top-p is above 0 and at most 1, but they are "
            f"{temperature}, {top_k} and {top_p}"
        )
    if temperature == 0:
        return None
    return Sampling(
        np.float32(temperature),
        None if top_k is None else np.int32(top_k),
        None if top_p == 1 else np.float32(top_p),
    )


def sample_token(logits: NamedArray, key: jax.Array, sampling: Sampling | None) -> NamedArray:
    """Draws one token of those that are probable enough; equally probable ones are all kept."""
    if sampling is None:
        return logits.argmax("vocab")
    logits = logits.astype(jnp.float32) / sampling.temperature
    if sampling.top_k is not None or sampling.top_p is not None:
        ordered = nym.sort(logits, "vocab", descending=True)
        if sampling.top_k is not None:
            is_kept = nym.arange(logits.resolve_axis("vocab")) < sampling.top_k
            ordered = nym.where(is_kept, ordered, -jnp.inf)
        if sampling.top_p is not None:
            probabilities = nym.nn.softmax(ordered, "vocab")
            is_kept = probabilities.cumsum("vocab") - probabilities < sampling.top_p
            ordered = nym.where(is_kept, ordered, -jnp.inf)
        least = nym.where(ordered > -jnp.inf, ordered, jnp.inf).min("vocab")
        logits = nym.where(logits >= least, logits, -jnp.inf)
    return nym.random.categorical(key, logits, "vocab")


@nym.named_jit(retrace_warning=False)  # prompts of other lengths are new programs
def init_cache(model: Model, Batch: Axis, KPos: Axis, dtype: Any, padding: NamedArray | None) -> Any:
    """Returns an empty cache."""
    return model.init_cache(Batch, KPos, dtype=dtype, padding=padding)


@nym.named_jit(donate_args=(False, True, False, False, False), retrace_warning=False)
def decode_token(
    model: Model, cache: Any, tokens: NamedArray, key: jax.Array, sampling: Sampling | None
) -> tuple[Any, NamedArray, jax.Array]:
    """Returns the cache with the new tokens, the next token of every prompt, and the next key."""
    logits, cache = model.decode(tokens, cache)
    key, draw_key = jax.random.split(key)
    token = sample_token(logits["pos", -1], draw_key, sampling)
    return cache, token.broadcast_axis(Axis("pos", 1)).rearrange(("batch", "pos")), key


def generate_tokens(
    model: Model,
    prompts: list[list[int]],
    steps: int,
    *,
    key: jax.Array | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float = 1.0,
) -> Iterator[np.ndarray]:
    """Yields the next token of every prompt, `steps` times; greedily unless there is a temperature.

    Calls with as many prompts, with a longest prompt of the same length and as many steps share their programs.
    """
    sampling = make_sampling(temperature, top_k, top_p)
    longest = max(map(len, prompts))
    if not all(prompts):
        raise ValueError("a prompt is empty; it needs a token at least")
    counts = np.array([longest - len(prompt) for prompt in prompts], np.int32)
    rows = [[0] * count + prompt for count, prompt in zip(counts, prompts, strict=True)]
    tokens = nym.auto_sharded(nym.named(np.array(rows, np.int32), ("batch", "pos")))
    padding = nym.named(counts, "batch") if counts.any() else None
    dtype = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))[0].dtype
    KPos = Axis("key_pos", longest + steps)
    cache = init_cache(model, tokens.resolve_axis("batch"), KPos, dtype, padding)
    key = jax.random.key(0) if key is None else key
    for _ in range(steps):
        cache, tokens, key = decode_token(model, cache, tokens, key, sampling)
        yield np.asarray(tokens.array)[:, 0]


class Bytes:
    """The tokens of the models of `train_lm.py`: bytes."""

    ends: tuple[int, ...] = ()

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode(errors="replace")


class HuggingFaceTokens:
    """The tokens of a folder with a `tokenizer.json`."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.tokenizer = importlib.import_module("tokenizers").Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.ends = find_ends(config)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids

    def decode(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens)


class Numbers:
    """Tokens written as numbers, where there is no tokenizer."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.ends = find_ends(config)

    def encode(self, text: str) -> list[int]:
        try:
            return [int(number) for number in text.replace(",", " ").split()]
        except ValueError:
            raise ValueError(
                f"without tokenizer.json a prompt is numbers of tokens, such as '1 2 3', not {text!r}"
            ) from None

    def decode(self, tokens: list[int]) -> str:
        return "".join(f"{token} " for token in tokens)


def find_ends(config: dict[str, Any]) -> tuple[int, ...]:
    """Returns the tokens that end a text, of which a `config.json` has none, one or a list."""
    ends = config.get("eos_token_id")
    return tuple(ends) if isinstance(ends, list) else () if ends is None else (ends,)


def load_run(folder: Path) -> tuple[Model, Any]:
    """Returns the model in the newest checkpoint of a run of `train_lm.py`, and its tokens."""
    transformer = importlib.import_module("transformer")
    options = json.loads((folder / "options.json").read_text())
    axes = transformer.make_axes(1, 1, options["embed"], options["layers"])
    init: Any = nym.named_jit(transformer.Transformer.init)
    model = init.eval_shape(axes, key=jax.random.key(0))
    return nym.checkpoint.restore(folder / "checkpoints", {"model": model}, strict=False)["model"], Bytes()


def load_folder(folder: Path) -> tuple[Model, Any]:
    """Returns the model in a folder as `transformers` saves it, and its tokens."""
    config = importlib.import_module("models.common").read_config(folder)
    kind = config.get("model_type")
    if kind not in MODELS:
        raise ValueError(f"the model in {folder} is of type {kind!r}; known are {', '.join(MODELS)}")
    model = getattr(importlib.import_module(f"models.{kind}"), MODELS[kind]).from_hf(folder, config)
    has_tokenizer = (folder / "tokenizer.json").exists() and importlib.util.find_spec("tokenizers")
    return model, HuggingFaceTokens(folder, config) if has_tokenizer else Numbers(config)


class Printer:
    """Shows texts while they grow: a single one as it comes, several ones below each other."""

    def __init__(self, count: int) -> None:
        self.live = Live(auto_refresh=False) if count > 1 else None
        self.printed = ""

    def show(self, texts: list[str]) -> None:
        if self.live is not None:
            self.live.update(Text("\n\n".join(texts)), refresh=True)
            return
        text = texts[0].rstrip("\N{REPLACEMENT CHARACTER}")  # the beginning of a character
        print(text[len(self.printed) :], end="", flush=True)
        self.printed = text


def show_stream(texts: list[list[int]], tokens: Any, stream: Iterator[np.ndarray]) -> list[str]:
    """Appends tokens to the texts until each has ended, shows them after each step, and returns them."""
    printer, is_open = Printer(len(texts)), [True] * len(texts)
    with printer.live or contextlib.nullcontext():
        for step in stream:
            is_open = [one and token not in tokens.ends for one, token in zip(is_open, step.tolist(), strict=True)]
            texts = [text + [token] * one for text, token, one in zip(texts, step.tolist(), is_open, strict=True)]
            printer.show([tokens.decode(text) for text in texts])
            if not any(is_open):
                break
    print()
    return [tokens.decode(text) for text in texts]


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="generate", description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add("model", type=Path, help="folder of a run of train_lm.py, or of a model as transformers saves it")
    add("prompts", nargs="+", help="texts to continue; numbers, if the folder has no tokenizer")
    add("--tokens", type=int, default=100, help="number of tokens; default %(default)s")
    add("--temperature", type=float, default=0.8, help="0 takes the most probable token; default %(default)s")
    add("--top-k", type=int, help="number of tokens to choose from, the most probable ones; default: all")
    add("--top-p", type=float, default=0.95, help="probability of the tokens to choose from; default %(default)s")
    add("--seed", type=int, default=0, help="seed of the choice of tokens; default %(default)s")
    add("--mesh", help="sizes of the mesh axes, such as data:4,model:2; default: all devices along model")
    add("--axis-types", choices=["auto", "explicit"], default="auto", help="type of the mesh axes; default %(default)s")
    add("--devices", type=int, default=8, help="virtual CPU devices, without GPUs and TPUs; default %(default)s")
    args = parser.parse_args(argv)
    for name in ("tokens", "devices"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be positive, not {getattr(args, name)}")
    try:
        make_sampling(args.temperature, args.top_k, args.top_p)
    except ValueError as error:
        parser.error(str(error))
    return args


def run(args: argparse.Namespace) -> list[str]:
    """Loads the model, shows the continuations, and returns the whole texts."""
    model, tokens = (load_run if (args.model / "options.json").exists() else load_folder)(args.model)
    texts = [tokens.encode(prompt) for prompt in args.prompts]
    key = jax.random.key(args.seed)
    options = {"temperature": args.temperature, "top_k": args.top_k, "top_p": args.top_p}
    return show_stream(texts, tokens, generate_tokens(model, texts, args.tokens, key=key, **options))


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    try:
        jax.config.update("jax_num_cpu_devices", args.devices)
        sizes = args.mesh or "data:1,model:-1"
        mesh = nym.parse_mesh_from_string(sizes, ("data", "model"), axis_types=args.axis_types)
        with jax.set_mesh(mesh), nym.axis_mapping(MAPPING):
            run(args)
    except (ValueError, OSError) as error:
        print(f"generate: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
