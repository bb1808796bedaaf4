"""Continues prompts with a language model, sharded by the names of its axes.

The model is a run of `train_lm.py` or a folder as Hugging Face's `transformers` saves it. The prompts are computed at
once; then each step computes one token of every prompt with a key-value cache, in one compiled function. With
`--slots`, any number of prompts share that many slots, and the next prompt takes the slot of a text that has ended
(continuous batching). Each text is the one that its prompt alone would get.
"""

import argparse
import collections
import contextlib
import dataclasses
import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

import axonym as nym
from axonym import Axis, NamedArray
from axonym.nn import KVCache


MAPPING = nym.AxisMapping(
    {"batch": "data", "heads": "model", "mlp": "model", "vocab": "model"},
    uneven="replicate",  # a few prompts need not fill the mesh
)
# By `model_type` of a `config.json`.
MODELS = {"gpt2": "GPT2", "llama": "Llama", "qwen3": "Qwen3", "gemma2": "Gemma2", "mixtral": "Mixtral"}


class Model(Protocol):
    """A language model that decodes with a cache."""

    def init_cache(self, Batch: Axis, KPos: Axis, **options: Any) -> Any: ...

    def decode(self, tokens: NamedArray, cache: Any, *, last_only: bool = False) -> tuple[NamedArray, Any]: ...


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
    logits, cache = model.decode(tokens, cache, last_only=True)
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
    check_prompts(prompts)
    counts = np.array([longest - len(prompt) for prompt in prompts], np.int32)
    rows = [[0] * count + prompt for count, prompt in zip(counts, prompts, strict=True)]
    tokens = nym.auto_sharded(nym.named(np.array(rows, np.int32), ("batch", "pos")))
    padding = nym.named(counts, "batch") if counts.any() else None
    KPos = Axis("key_pos", longest + steps)
    cache = init_cache(model, tokens.resolve_axis("batch"), KPos, find_dtype(model), padding)
    key = jax.random.key(0) if key is None else key
    for _ in range(steps):
        cache, tokens, key = decode_token(model, cache, tokens, key, sampling)
        yield np.asarray(tokens.array)[:, 0]


def check_prompts(prompts: list[list[int]]) -> None:
    if not all(prompts):
        raise ValueError("a prompt is empty; it needs a token at least")


class Slots(eqx.Module):
    """Texts that are computed together, each in a slot along `batch`.

    Their newest tokens are at one position of the cache, a ring, so that a step writes one slice for all texts. A text
    began at a position of its own, as if it were padded before it.

    Attributes:
        cache: The keys and values of each text.
        token: The newest token of each text, which the cache does not have yet.
        key: The random key for the next token of each text.
    """

    cache: Any
    token: NamedArray
    key: NamedArray


@nym.named_jit(retrace_warning=False)
def init_slots(model: Model, Batch: Axis, KPos: Axis, dtype: Any) -> Slots:
    """Returns slots without texts, whose cache is as if it were full of padding."""
    padding = nym.full(Batch, KPos.size, jnp.int32)
    cache = model.init_cache(Batch, KPos, dtype=dtype, padding=padding, sliding_window=True)
    cache = map_caches(lambda cache: dataclasses.replace(cache, length=nym.full_like(cache.length, KPos.size)), cache)
    keys = nym.auto_sharded(nym.named(jax.random.split(jax.random.key(0), Batch.size), Batch))
    return Slots(cache, nym.zeros(Batch, jnp.int32), keys)


def map_caches(fn: Any, tree: Any) -> Any:
    return jax.tree.map(fn, tree, is_leaf=lambda x: isinstance(x, KVCache))


def map_slots(fn: Any, *slots: Slots) -> Slots:
    """Applies a function to the arrays that have an element for each slot, and leaves the others as they are."""

    def apply(x: NamedArray, *further_slots: NamedArray) -> NamedArray:
        return fn(x, *further_slots) if "batch" in x.names else x

    return jax.tree.map(apply, *slots, is_leaf=lambda x: isinstance(x, NamedArray))


def continue_texts(
    model: Model, slots: Slots, tokens: NamedArray, sampling: Sampling | None
) -> tuple[Slots, NamedArray]:
    """Returns slots after these tokens, and the logarithms of the probabilities that the model gave to the new ones."""

    def draw_token(logits: NamedArray, key: Any) -> tuple[NamedArray, NamedArray, NamedArray]:
        next_key, draw_key = jax.random.split(key)
        token = sample_token(logits, draw_key, sampling)
        log_probabilities = nym.nn.log_softmax(logits.astype(jnp.float32), "vocab")
        return token, nym.named(next_key, ()), log_probabilities["vocab", token]

    logits, cache = model.decode(tokens, slots.cache, last_only=True)
    token, key, log_probability = nym.vmap(draw_token, "batch")(logits["pos", -1], slots.key)
    return Slots(cache, token, key), log_probability


@nym.named_jit(donate_args=(False, True, False, False, False, False, False), retrace_warning=False)
def fill_slot(
    model: Model,
    slots: Slots,
    slot: Any,
    prompt: NamedArray,
    padding: Any,
    key: jax.Array,
    sampling: Sampling | None,
) -> tuple[Slots, NamedArray, NamedArray]:
    """Puts a prompt, padded at its front, into a slot, so that it ends at the newest position.

    Returns:
        The slots, the first token after the prompt, and the logarithm of its probability.
    """

    def move_back(cache: KVCache) -> KVCache:  # what the last text has left is before the padding, so it is masked
        start = cache.length - prompt.resolve_axis("pos").size
        return dataclasses.replace(cache, length=start, padding=(start + padding).broadcast_axis(Axis("batch", 1)))

    emptied = map_slots(lambda x: x["batch", nym.ds(slot, 1)], slots)
    emptied = Slots(map_caches(move_back, emptied.cache), emptied.token, nym.named(key[None], "batch"))
    filled, log_probability = continue_texts(model, emptied, prompt.broadcast_axis(Axis("batch", 1)), sampling)
    slots = map_slots(lambda x, new: x.at["batch", nym.ds(slot, 1)].set(new), slots, filled)
    return slots, filled.token, log_probability


@nym.named_jit(donate_args=(False, True, False), retrace_warning=False)
def decode_slots(model: Model, slots: Slots, sampling: Sampling | None) -> tuple[Slots, NamedArray, NamedArray]:
    """Returns the slots with the next token in each, the tokens, and the logarithms of their probabilities."""
    tokens = slots.token.broadcast_axis(Axis("pos", 1)).rearrange(("batch", "pos"))
    slots, log_probability = continue_texts(model, slots, tokens, sampling)
    return slots, slots.token, log_probability


class Served(NamedTuple):
    """A token of a text.

    Attributes:
        text: The number of the text, as `submit` returned it.
        token: The token.
        log_probability: The logarithm of the model's probability of the token.
        is_last: Whether the text has ended.
    """

    text: int
    token: int
    log_probability: float
    is_last: bool


class Request(NamedTuple):
    """A prompt that waits for a slot or has one, and the number of tokens that its text still gets."""

    text: int
    prompt: list[int]
    key: jax.Array
    remaining: int


class Server:
    """Continues prompts in slots, of which each takes the next prompt when its text has ended.

    Programs are compiled once: one for a token in all slots, and one for the prompts of up to 8 tokens, up to 16, up to
    32 and so on. A text depends on its prompt and its key alone, not on the slot nor on what is in the others.

    Args:
        model: The model.
        slots: Number of texts that are computed together.
        longest: Tokens of the longest prompt.
        steps: Tokens of the longest continuation.
        ends: Tokens that end a text.
        temperature: What logits are divided by; 0 takes the most probable tokens.
        top_k: How many of the most probable tokens may be drawn, or None for all.
        top_p: The probability that the most probable tokens have together, of which one is drawn.
    """

    def __init__(
        self,
        model: Model,
        slots: int,
        longest: int,
        steps: int,
        *,
        ends: tuple[int, ...] = (),
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
    ) -> None:
        self.model, self.longest, self.steps, self.ends = model, longest, steps, ends
        self.sampling = make_sampling(temperature, top_k, top_p)
        self.submitted = 0
        self.waiting: collections.deque[Request] = collections.deque()
        self.texts: list[Request | None] = [None] * slots
        dtype = find_dtype(model)
        self.slots = init_slots(model, Axis("batch", slots), Axis("key_pos", self.pad(longest) + steps), dtype)

    @staticmethod
    def pad(length: int) -> int:
        """Returns the length that prompts of this one are padded to, the next power of 2."""
        return max(8, 1 << (length - 1).bit_length())

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not any(self.texts)

    def submit(self, prompt: list[int], key: jax.Array | None = None, steps: int | None = None) -> int:
        """Adds a prompt to those that wait, and returns the number of its text."""
        check_prompts([prompt])
        steps = self.steps if steps is None else steps
        if not 0 < len(prompt) <= self.longest or not 0 < steps <= self.steps:
            raise ValueError(
                f"a prompt has 1 to {self.longest} tokens and is continued by 1 to {self.steps}, but it has "
                f"{len(prompt)} and is to be continued by {steps}; make a server for longer ones"
            )
        key = jax.random.key(self.submitted) if key is None else key
        self.waiting.append(Request(self.submitted, prompt, key, steps))
        self.submitted += 1
        return self.submitted - 1

    def step(self) -> list[Served]:
        """Computes a token in each slot that has a text, fills the free ones, and returns the new tokens."""
        served = []
        if any(self.texts):
            self.slots, *drawn = decode_slots(self.model, self.slots, self.sampling)
            tokens, log_probabilities = (np.asarray(x.array).tolist() for x in drawn)
            busy = [slot for slot, text in enumerate(self.texts) if text]
            served += [self.serve_token(slot, tokens[slot], log_probabilities[slot]) for slot in busy]
        free = [slot for slot, text in enumerate(self.texts) if not text]
        for slot in free[: len(self.waiting)]:
            request = self.texts[slot] = self.waiting.popleft()
            padding = self.pad(len(request.prompt)) - len(request.prompt)
            prompt = nym.named(np.array([0] * padding + request.prompt, np.int32), "pos")
            arguments = np.int32(slot), prompt, np.int32(padding), request.key, self.sampling
            self.slots, token, log_probability = fill_slot(self.model, self.slots, *arguments)
            served.append(self.serve_token(slot, int(token.item()), float(log_probability.item())))
        return served

    def serve_token(self, slot: int, token: int, log_probability: float) -> Served:
        """Returns a new token, and frees its slot if it is the last one of a text."""
        request: Any = self.texts[slot]
        remaining = request.remaining - 1
        is_last = remaining == 0 or token in self.ends
        self.texts[slot] = None if is_last else request._replace(remaining=remaining)
        return Served(request.text, token, log_probability, is_last)


def find_dtype(model: Model) -> Any:
    return jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))[0].dtype


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


def show_served(texts: list[list[int]], tokens: Any, server: Server) -> tuple[list[str], list[list[float]]]:
    """Shows the texts while a server continues them, and returns them with the log-probabilities of their tokens."""
    printer, log_probabilities = Printer(len(texts)), [[] for _ in texts]
    with printer.live or contextlib.nullcontext():
        while not server.is_idle:
            for served in server.step():
                if served.token not in tokens.ends:
                    texts[served.text] = [*texts[served.text], served.token]
                    log_probabilities[served.text].append(served.log_probability)
            printer.show([tokens.decode(text) for text in texts])
    print()
    return [tokens.decode(text) for text in texts], log_probabilities


def print_log_probabilities(log_probabilities: list[list[float]], seconds: float) -> None:
    """Prints a row for each text."""
    table = Table("text", "tokens", "log-probability of a token", "perplexity", box=None)
    for number, values in enumerate(log_probabilities, 1):
        mean = float(np.mean(values)) if values else 0.0
        table.add_row(str(number), str(len(values)), f"{mean:.3f}", f"{np.exp(-mean):.2f}")
    console = Console(highlight=False)
    console.print(table)
    count = sum(map(len, log_probabilities))
    console.print(f"{count} tokens in {seconds:.1f} s, compiling included")


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="generate", description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add("model", type=Path, help="folder of a run of train_lm.py, or of a model as transformers saves it")
    add("prompts", nargs="+", help="texts to continue; numbers, if the folder has no tokenizer")
    add("--tokens", type=int, default=100, help="number of tokens; default %(default)s")
    add("--temperature", type=float, default=0.8, help="0 takes the most probable token; default %(default)s")
    add("--top-k", type=int, help="number of tokens to choose from, the most probable ones; default: all")
    add("--top-p", type=float, default=0.95, help="probability of the tokens to choose from; default %(default)s")
    add("--slots", type=int, help="continue the prompts in this many slots, the next ones as texts end; default: all")
    add("--log-probabilities", action="store_true", help="also print how probable the tokens are; takes slots")
    add("--seed", type=int, default=0, help="seed of the choice of tokens; default %(default)s")
    add("--mesh", help="sizes of the mesh axes, such as data:4,model:2; default: all devices along model")
    add("--axis-types", choices=["auto", "explicit"], default="auto", help="type of the mesh axes; default %(default)s")
    add("--devices", type=int, default=8, help="virtual CPU devices, without GPUs and TPUs; default %(default)s")
    args = parser.parse_args(argv)
    args.slots = len(args.prompts) if args.slots is None and args.log_probabilities else args.slots
    for name in ("tokens", "devices", "slots"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
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
    if args.slots:
        server = Server(model, args.slots, max(map(len, texts)), args.tokens, ends=tokens.ends, **options)
        for number, text in enumerate(texts):
            server.submit(text, jax.random.fold_in(key, number))
        started = time.perf_counter()
        texts_shown, log_probabilities = show_served(texts, tokens, server)
        if args.log_probabilities:
            print_log_probabilities(log_probabilities, time.perf_counter() - started)
        return texts_shown
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
