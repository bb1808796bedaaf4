"""A decoder written three times: by hand on raw arrays, and with the layers of Haliax and of Axonym.

Pre-norm blocks of causal attention and a perceptron, a tied head, and the cross entropy of the next token; the blocks
are called one after another, or are stacked and scanned. All forms have the same parameters in the same order.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import axonym as nym

from .contenders import haliax


EPS = 1e-5


@dataclass(frozen=True)
class Sizes:
    layers: int = 12
    embed: int = 64
    heads: int = 4
    pos: int = 32
    batch: int = 2
    vocab: int = 256

    @property
    def head_dim(self) -> int:
        return self.embed // self.heads


@dataclass(frozen=True)
class Form:
    """One form of the decoder, or of another model.

    Attributes:
        loss: Function of parameters and `tokens`; it reads nothing that an earlier call left behind.
        parameters: The parameters, whose leaves are equal arrays in every form.
        tokens: The tokens and the targets, or what else the loss takes.
    """

    loss: Callable[..., Any]
    parameters: Any
    tokens: tuple[Any, ...]

    def fresh(self) -> Callable[..., Any]:
        """Returns the loss as a function that JAX has not traced before."""
        return lambda *args: self.loss(*args)

    def flat(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Returns the loss as a function of a list of plain arrays, tokens and targets; and these."""
        leaves, treedef = jax.tree.flatten(self.parameters)
        tokens, given = jax.tree.flatten(self.tokens)

        def loss(leaves: Any, *tokens: Any) -> Any:
            return self.loss(jax.tree.unflatten(treedef, leaves), *jax.tree.unflatten(given, tokens))

        return loss, (leaves, *tokens)


def forms(sizes: Sizes, *, scanned: bool) -> dict[str, Form]:
    """Returns the decoder in each form, with the same random parameters and tokens."""
    return {
        who: form(who, sizes, scanned=scanned) for who in ("JAX", "Axonym", *([] if haliax is None else ["Haliax"]))
    }


def form(who: str, sizes: Sizes, *, scanned: bool) -> Form:
    """Returns the decoder of one contender."""
    random = np.random.default_rng(0)
    parameters = _drawn(random, sizes, scanned)
    tokens = tuple(jnp.asarray(random.integers(sizes.vocab, size=(sizes.batch, sizes.pos))) for _ in range(2))
    if who == "JAX":
        return Form(_raw_loss_scanned if scanned else _raw_loss_unrolled, parameters, tokens)
    return _named_form(nym if who == "Axonym" else haliax, sizes, scanned, parameters, tokens)


def gathering(sizes: Sizes, *, scanned: bool) -> dict[str, Form]:
    """Returns the form by hand once more, with a loss that gathers the logits of the targets."""
    by_hand = form("JAX", sizes, scanned=scanned)
    return {"JAX, gathering": replace(by_hand, loss=functools.partial(by_hand.loss, chosen=_gathered))}


def _drawn(random: np.random.Generator, sizes: Sizes, scanned: bool) -> Any:
    def drawn(*shape: int) -> jax.Array:
        return jnp.asarray(random.standard_normal(shape, np.float32) / math.sqrt(sizes.embed))

    def block(*first: int) -> dict[str, jax.Array]:
        embed, heads, features, mlp = sizes.embed, sizes.heads, sizes.head_dim, 4 * sizes.embed
        return {
            "attention_norm": drawn(*first, embed),
            "down": drawn(*first, mlp, embed),
            "down_bias": drawn(*first, embed),
            "key": drawn(*first, embed, heads, features),
            "mlp_norm": drawn(*first, embed),
            "output": drawn(*first, heads, features, embed),
            "query": drawn(*first, embed, heads, features),
            "up": drawn(*first, embed, mlp),
            "up_bias": drawn(*first, mlp),
            "value": drawn(*first, embed, heads, features),
        }

    blocks = block(sizes.layers) if scanned else [block() for _ in range(sizes.layers)]
    return {"blocks": blocks, "embed": drawn(sizes.vocab, sizes.embed), "norm": drawn(sizes.embed)}


# By hand, on raw arrays


def _norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    return x * lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + EPS) * weight


def _attention(x: jax.Array, block: dict[str, jax.Array], mask: jax.Array) -> jax.Array:
    query = jnp.einsum("bse,ehd->bshd", x, block["query"])
    key = jnp.einsum("bse,ehd->bshd", x, block["key"])
    value = jnp.einsum("bse,ehd->bshd", x, block["value"])
    scale = 1 / math.sqrt(query.shape[-1])
    scores = jnp.einsum("bqhd,bkhd->bhqk", query * scale, key)
    scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), value)
    return jnp.einsum("bshd,hde->bse", mixed, block["output"])


def _mlp(x: jax.Array, block: dict[str, jax.Array]) -> jax.Array:
    hidden = jax.nn.gelu(jnp.einsum("bse,em->bsm", x, block["up"]) + block["up_bias"])
    return jnp.einsum("bsm,me->bse", hidden, block["down"]) + block["down_bias"]


def _raw_block(block: dict[str, jax.Array], x: jax.Array, mask: jax.Array) -> jax.Array:
    x = x + _attention(_norm(x, block["attention_norm"]), block, mask)
    return x + _mlp(_norm(x, block["mlp_norm"]), block)


def _picked(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Returns the logits of the targets without a gather, whose gradient is a scatter and divides no vocabulary."""
    return jnp.sum(jnp.where(targets[..., None] == jnp.arange(logits.shape[-1]), logits, 0), axis=-1)


def _gathered(logits: jax.Array, targets: jax.Array) -> jax.Array:
    return jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]


def _raw_loss(
    parameters: Any, tokens: jax.Array, targets: jax.Array, run: Callable[..., jax.Array], chosen: Callable[..., Any]
) -> jax.Array:
    positions = jnp.arange(tokens.shape[-1])
    x = run(parameters["blocks"], parameters["embed"][tokens], positions[:, None] >= positions)
    logits = jnp.einsum("bse,ve->bsv", _norm(x, parameters["norm"]), parameters["embed"])
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen(logits, targets))


def _raw_loss_unrolled(
    parameters: Any, tokens: jax.Array, targets: jax.Array, chosen: Callable[..., Any] = _picked
) -> jax.Array:
    def run(blocks: Any, x: jax.Array, mask: jax.Array) -> jax.Array:
        for block in blocks:
            x = _raw_block(block, x, mask)
        return x

    return _raw_loss(parameters, tokens, targets, run, chosen)


def _raw_loss_scanned(
    parameters: Any, tokens: jax.Array, targets: jax.Array, chosen: Callable[..., Any] = _picked
) -> jax.Array:
    def run(blocks: Any, x: jax.Array, mask: jax.Array) -> jax.Array:
        return lax.scan(lambda x, block: (_raw_block(block, x, mask), None), x, blocks)[0]

    return _raw_loss(parameters, tokens, targets, run, chosen)


# With layers of named axes: one code for both, because Axonym keeps Haliax's calls


def _axes(library: Any, sizes: Sizes) -> Any:
    names = ("embed", "heads", "head_dim", "mlp", "vocab", "pos", "batch")
    of = (sizes.embed, sizes.heads, sizes.head_dim, 4 * sizes.embed, sizes.vocab, sizes.pos, sizes.batch)
    return tuple(library.Axis(name, size) for name, size in zip(names, of, strict=True))


def _attention_of(library: Any) -> Any:
    return getattr(library.nn, "attention", library.nn)


class Block(eqx.Module):
    """One block, with the layers of a library; fields are in the order of the names of the raw parameters."""

    attention_norm: Any
    down: Any
    key: Any
    mlp_norm: Any
    output: Any
    query: Any
    up: Any
    value: Any
    library: Any = eqx.field(static=True)

    @staticmethod
    def init(library: Any, sizes: Sizes, *, key: jax.Array) -> "Block":
        embed, heads, features, mlp, *_ = _axes(library, sizes)

        def norm() -> Any:
            return library.nn.RmsNorm.init(embed, EPS, use_bias=False)

        def linear(inputs: Any, outputs: Any, use_bias: bool = False) -> Any:
            return library.nn.Linear.init(inputs, outputs, key=key, use_bias=use_bias, out_first=False)

        return Block(
            attention_norm=norm(),
            down=linear(mlp, embed, use_bias=True),
            key=linear(embed, (heads, features)),
            mlp_norm=norm(),
            output=linear((heads, features), embed),
            query=linear(embed, (heads, features)),
            up=linear(embed, mlp, use_bias=True),
            value=linear(embed, (heads, features)),
            library=library,
        )

    def __call__(self, x: Any, mask: Any) -> Any:
        x = x + self._attention(self.attention_norm(x), mask)
        return x + self.down(self.library.nn.gelu(self.up(self.mlp_norm(x))))

    def _attention(self, x: Any, mask: Any) -> Any:
        query, key, value = self.query(x), self.key(x), self.value(x)
        key, value = key.rename({"pos": "key_pos"}), value.rename({"pos": "key_pos"})
        attended = _attention_of(self.library).dot_product_attention
        return self.output(attended("key_pos", "head_dim", query, key, value, mask=mask))


class Decoder(eqx.Module):
    blocks: Any
    embed: Any
    norm: Any
    library: Any = eqx.field(static=True)

    @staticmethod
    def init(library: Any, sizes: Sizes, scanned: bool, *, key: jax.Array) -> "Decoder":
        embed, _, _, _, vocab, *_ = _axes(library, sizes)
        layers = library.Axis("layers", sizes.layers)
        if scanned:
            keys = jax.random.split(key, sizes.layers)
            blocks = library.nn.Stacked.init(layers, Block)(library, sizes, key=keys)
        else:
            blocks = [Block.init(library, sizes, key=key) for _ in range(sizes.layers)]
        table = library.nn.Embedding.init(vocab, embed, key=key)
        return Decoder(blocks, table, library.nn.RmsNorm.init(embed, EPS, use_bias=False), library)

    def __call__(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        pos = tokens.resolve_axis("pos")
        if self.library is nym:  # which knows of this mask that each query attends to a key
            mask = nym.nn.AttentionMask.causal()
        else:
            mask = _attention_of(self.library).causal_mask(pos, pos.alias("key_pos"))
        if isinstance(self.blocks, list):
            for block in self.blocks:
                x = block(x, mask)
        else:  # as a closure, which is traced anew, like the one by hand
            x = self.blocks.fold_via(lambda block, x: block(x, mask))(x)
        return self.embed.unembed(self.norm(x))


def _loss_of_axonym(model: Any, tokens: Any, targets: Any) -> Any:
    return nym.nn.cross_entropy_loss(model(tokens), "vocab", targets).scalar()


def _loss_of_haliax(model: Any, tokens: Any, targets: Any) -> Any:
    logits = model(tokens)
    vocab = logits.resolve_axis("vocab")
    loss = haliax.nn.cross_entropy_loss(logits, vocab, haliax.nn.one_hot(targets, vocab, dtype=logits.dtype))
    return loss.scalar()


def _named_form(library: Any, sizes: Sizes, scanned: bool, parameters: Any, tokens: tuple[Any, ...]) -> Form:
    made = Decoder.init(library, sizes, scanned, key=jax.random.key(0))
    leaves, (shapes, treedef) = jax.tree.leaves(parameters), jax.tree.flatten(made)
    assert [leaf.shape for leaf in leaves] == [leaf.shape for leaf in shapes]
    *_, pos, batch = _axes(library, sizes)
    first, second = (library.named(one, (batch, pos)) for one in tokens)
    loss = _loss_of_axonym if library is nym else _loss_of_haliax
    return Form(loss, jax.tree.unflatten(treedef, leaves), (first, second))


def check_agreement(found: dict[str, Form], tolerance: float = 2e-4) -> None:
    """Raises an error if the forms differ in their loss or in its gradients."""
    results = {}
    for who, form in found.items():
        loss, arguments = form.flat()
        results[who] = jax.jit(jax.value_and_grad(loss))(*arguments)
    for who, (value, gradients) in results.items():
        expected, expected_gradients = results["JAX"]
        np.testing.assert_allclose(value, expected, rtol=tolerance, err_msg=who)
        for own, other in zip(gradients, expected_gradients, strict=True):
            np.testing.assert_allclose(own, other, rtol=tolerance, atol=tolerance, err_msg=who)
