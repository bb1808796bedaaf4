"""Names in compiled programs: scopes of operations and paths of modules, forward and backward."""

import functools
import re
import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import axonym as nym
from tests.refusals import refusal


Batch, Pos, Vocab, Layers = nym.make_axes(batch=8, pos=4, vocab=16, layers=2)
Embed, Heads, HeadDim, Mlp = nym.make_axes(embed=8, heads=2, head_dim=4, mlp=16)
KeyPos = Pos.alias("key_pos")
KEY = jax.random.key(0)
MAPPING = {"batch": "data", "mlp": "model", "heads": "model"}


class Attention(eqx.Module):
    query: nym.nn.Linear
    out: nym.nn.Linear

    @nym.named_call
    def __call__(self, x):
        q = self.query(x)
        k = q.rename({"pos": "key_pos"})
        return self.out(nym.nn.dot_product_attention(KeyPos, HeadDim, q, k, k))


class Block(eqx.Module):
    norm: nym.nn.RmsNorm
    attention: Attention
    mlp: nym.nn.MLP

    @staticmethod
    def init(*, key):
        query = nym.nn.Linear.init(Embed, (Heads, HeadDim), key=key, use_bias=False)
        out = nym.nn.Linear.init((Heads, HeadDim), Embed, key=key)
        mlp = nym.nn.MLP.init(Embed, Embed.alias("embed2"), Mlp, 1, key=key)
        return Block(nym.nn.RmsNorm.init(Embed), Attention(query, out), mlp)

    def __call__(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x).rename({"embed2": "embed"})


class Model(eqx.Module):
    embedding: nym.nn.Embedding
    blocks: nym.nn.Stacked[Block] | list[Block]

    def __call__(self, tokens):
        x = self.embedding(tokens)
        if isinstance(self.blocks, list):
            for block in self.blocks:
                x = block(x)
        else:
            x = self.blocks.fold(x)
        return self.embedding.unembed(x)


@functools.cache
def make_model(form):
    """Returns a model of shapes, of which programs are made but not run."""

    def initialize_model():
        stack = nym.nn.Stacked.init(Layers, Block, gradient_checkpointing=form == "remat")(key=KEY)
        return Model(nym.nn.Embedding.init(Vocab, Embed, key=KEY), stack.unstacked() if form == "list" else stack)

    return eqx.filter_eval_shape(initialize_model)


def compute_loss(model, tokens):
    return nym.nn.cross_entropy_loss(model(tokens), Vocab, tokens).scalar()


def make_step(gradient):
    if gradient == "jax":
        return jax.value_and_grad(nym.named_call(compute_loss))
    if gradient == "equinox":
        return eqx.filter_value_and_grad(nym.named_call(compute_loss))
    return nym.value_and_grad(compute_loss)


def hlo_names(fn, *args):
    text = nym.named_jit(fn).lower(*args).compile().as_text()
    return set(re.findall(r'op_name="([^"]*)"', text))


def jaxpr_text(fn, *args):
    return jax.make_jaxpr(fn)(*args).pretty_print(name_stack=True)


TOKENS = nym.zeros((Batch, Pos), jnp.int32)
QUERY = "attention/query/dot(embed -> heads, head_dim)/dot_general"


@pytest.mark.parametrize(
    ("form", "gradient", "kind"),
    [("list", "axonym", "explicit"), ("scan", "jax", "auto"), ("remat", "equinox", "explicit")],
)
def test_compiled_programs_hold_paths_and_axes_forward_and_backward(form, gradient, kind, request):
    with jax.set_mesh(request.getfixturevalue(f"{kind}_mesh")), nym.axis_mapping(MAPPING):
        names = hlo_names(make_step(gradient), make_model(form), TOKENS)
    forward = {name for name in names if "jvp(" in name and "transpose(" not in name}
    backward = {name for name in names if "transpose(" in name}
    paths = ["blocks[0]", "blocks[1]"] if form == "list" else ["blocks"]
    scores = "attention/dot_product_attention(head_dim, key_pos)/dot(head_dim -> key_pos)/dot_general"
    for path in paths:
        # JAX puts the outermost name in parentheses.
        start = f"jvp({path})" if gradient == "axonym" and form == "list" else path
        for part in (QUERY, scores, "mlp/layers[1]/dot(mlp -> embed2)/dot_general", "norm/rms_norm(embed)/rsqrt"):
            assert any(f"{start}/{part}" in name for name in forward), (path, part)
        start = start.replace("jvp(", "transpose(jvp(").replace(")", "))")
        assert any(f"{start}/{QUERY}" in name for name in backward)
    assert any("embedding" in name and "take(vocab -> embed)" in name for name in forward)
    assert any("embedding" in name and "unembed/dot(embed -> vocab)" in name for name in backward)
    assert any("cross_entropy_loss(vocab)" in name for name in forward)
    if form == "scan":  # all operations of a loop
        assert all("/blocks/while" in name for name in names if "while" in name)


def test_modules_in_arguments_of_a_compiled_function_have_paths():
    model = make_model("scan")
    lowered = nym.named_jit(compute_loss).lower(model, TOKENS).as_text(debug_info=True)
    assert "jit(compute_loss)/embedding/unembed/dot(embed -> vocab)" in lowered
    text = jaxpr_text(lambda state: state["model"].embedding(TOKENS), {"model": model})
    assert "[Embedding/take(vocab -> embed)]" in text
    text = jaxpr_text(nym.named_call(lambda state: state["model"].embedding(TOKENS), name="f"), {"model": model})
    assert "[f/model/embedding/take(vocab -> embed)]" in text


def test_a_method_adds_its_name_once_to_that_of_its_module():
    class Layer(eqx.Module):
        weight: nym.NamedArray

        @nym.named_call
        def __call__(self, x):
            return self.project(x)

        @nym.named_call
        def project(self, x):
            return nym.dot(x, self.weight, axis=Embed)

        @nym.named_call(name="other/name")
        def other(self, x):
            return self(x)

    class Child(Layer):
        @nym.named_call
        def __call__(self, x):
            return super().__call__(x)

    layer = Child(nym.ones((Embed, Mlp)))
    x = nym.ones(Embed)
    assert "[Child/project/dot(embed -> mlp)]" in jaxpr_text(layer, x)
    assert "[other/name/project/dot(embed -> mlp)]" in jaxpr_text(layer.other, x)


def test_products_name_the_axes_summed_over_and_those_that_are_new():
    x, w, v = nym.ones((Batch, Embed)), nym.ones((Embed, Heads, HeadDim)), nym.ones((Embed, Mlp))

    def name_of(fn, *args):
        return re.findall(r"# \[(.*)\]", jaxpr_text(fn, *args))[-1]

    assert name_of(lambda: nym.dot(x, w, axis="embed")) == "dot(embed -> heads, head_dim)"
    assert name_of(lambda: nym.dot(x, x, axis="embed")) == "dot(embed)"
    assert name_of(lambda: nym.dot(x, nym.ones(Mlp), axis=())) == "dot(-> mlp)"
    assert name_of(lambda: nym.einsum("{embed}, {embed} -> ...", x, w)) == "einsum(embed -> heads, head_dim)"
    assert name_of(lambda: nym.dot(x, v, axis="embed", dot_general=jax.lax.dot_general)) == "dot(embed -> mlp)"
    assert (
        name_of(lambda: nym.nn.rotary_embedding(nym.ones((Pos, Embed)), Pos, Embed)) == "rotary_embedding(pos, embed)"
    )


def test_names_are_bounded_and_hold_no_separators():
    strange = nym.Axis('a/b"\n' + "x" * 500, 2)
    x = nym.ones((strange, Embed))
    text = jaxpr_text(lambda: nym.dot(x, x, axis=strange))
    assert f"[dot(a_b__{'x' * 115})]" in text


def test_parameters_are_gathered_and_results_sharded_under_their_names(mesh):
    layer = nym.nn.Linear.init(Embed, Mlp, key=KEY, use_bias=False)
    step = nym.fsdp(lambda layer, x: layer(x).sum().scalar(), {"embed": "data"}, MAPPING)
    with jax.set_mesh(mesh):
        text = jaxpr_text(step, nym.shard(layer, {"embed": "data"}), nym.ones((Batch, Embed)))
    assert "Linear/gather(mlp, embed)" in text
    assert mesh.axis_types[0] == jax.sharding.AxisType.Explicit or "Linear/shard(batch, mlp)" in text


def test_threads_and_errors_leave_no_names_behind():
    model = make_model("list")
    texts = {}

    def trace(number):
        @nym.named_call(name=f"thread{number}")
        def fn(model, x):
            barrier.wait(10)
            return compute_loss(model, x)

        texts[number] = jaxpr_text(fn, model, TOKENS)

    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=trace, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, text in texts.items():
        assert f"[thread{number}/blocks[0]/attention/query/dot(embed -> heads, head_dim)]" in text
        assert not any(f"thread{other}" in text for other in texts if other != number)
    with refusal("has the output axis 'embed' already"):
        jax.make_jaxpr(nym.named_call(compute_loss))(model, nym.zeros((Batch, Embed), jnp.int32))
    assert "[Linear/dot(embed -> heads, head_dim)]" in jaxpr_text(
        nym.nn.Linear.init(Embed, (Heads, HeadDim), key=KEY), nym.ones(Embed)
    )


def test_a_call_outside_of_traced_functions_is_the_function_itself():
    layer = nym.nn.Linear.init(Embed, Mlp, key=KEY)
    assert nym.named_call(lambda x, *, y: (x, y))(1, y=2) == (1, 2)
    assert nym.nn.Linear.__call__.__wrapped__(layer, nym.ones(Embed)).axes == layer(nym.ones(Embed)).axes
