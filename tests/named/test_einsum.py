"""`einsum`: what it sums, how operands are written, what it costs, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np

import axonym as nym
from axonym import Axis
from tests.named.comparing import assert_close
from tests.refusals import refusal


SIZES = {"batch": 2, "pos": 3, "embed": 4, "mlp": 2}
NAMES = tuple(SIZES)


def drawn(names, seed):
    random = np.random.default_rng(seed)
    return nym.named(random.normal(size=[SIZES[name] for name in names]).astype("f"), tuple(names))


def expected(operands, names):
    letters = dict(zip(NAMES, "abcd", strict=True))
    left = ",".join("".join(letters[name] for name in x.names) for x in operands)
    return np.einsum(f"{left}->{''.join(letters[name] for name in names)}", *map(np.asarray, operands))


def check(equations, *operands, **aliases):
    """Compares what each equation returns, all in one program, with the sum of NumPy that has these names."""
    results = jax.jit(lambda operands: [nym.einsum(equation, *operands, **aliases) for equation in equations])(operands)
    for names, result in zip(equations.values(), results, strict=True):
        assert_close(result, names, expected(operands, names))


x, w, y, v = (
    drawn(names, seed)
    for seed, names in enumerate((("batch", "pos", "embed"), ("embed", "mlp"), ("pos", "batch", "mlp"), ("pos",)))
)


def test_two_operands():
    check(
        {
            "b p e, e m -> b p m": ("batch", "pos", "mlp"),
            "b p e, e m -> m b": ("mlp", "batch"),
            "... e, e m -> ... m": ("batch", "pos", "mlp"),
            "b ..., e ... -> ... b": ("pos", "mlp", "batch"),
            "b ... e, e ... -> e ... b": ("embed", "pos", "mlp", "batch"),
            "..., ... -> ...": ("embed", "batch", "pos", "mlp"),
            "{embed}, {embed} -> ...": ("batch", "pos", "mlp"),
            "{embed batch ...}, {mlp embed} -> mlp ...": ("mlp", "pos"),
            "{pos}, {} -> ...": ("embed", "batch", "mlp"),
            "-> mlp batch": ("mlp", "batch"),
            "-> ...": ("embed", "batch", "pos", "mlp"),
            "->": (),
            "{embed}, embed m -> ... m": ("batch", "pos", "mlp"),  # the forms may be mixed
            "{embed mlp} -> mlp": ("batch", "pos", "mlp"),  # one pair of braces is for all operands
            "{embed batch} -> batch": ("pos", "mlp", "batch"),
        },
        x,
        w,
    )


def test_one_and_several_operands():
    check(
        {"b p e -> e b": ("embed", "batch"), "{pos} -> ...": ("batch", "embed"), "{pos} -> batch": ("embed", "batch")},
        x,
    )
    equations = {"b p e, e m, p b m, p -> p m": ("pos", "mlp"), "{pos}, {embed}, {}, {} -> ...": ("batch", "mlp")}
    check(equations, x, w, y, v)
    check({"b p e, ->": ()}, x, nym.named(np.ones((), np.float32), ()))


def test_aliases_name_and_check():
    check({"B P E, E M -> B M": ("batch", "mlp")}, x, w, B="batch", P=3, E=Axis("embed", 4), M=2)
    check({"{e}, e m -> ... m": ("batch", "pos", "mlp")}, x, w, e="embed")
    check({"{m embed} -> m": ("batch", "pos", "mlp")}, x, w, m="mlp")
    check({"-> B m": ("batch", "mlp")}, x, w, B="batch", m=Axis("mlp", 2))
    check({"{E}, {E} -> ...": ("batch", "pos", "mlp")}, x, w, E=Axis("embed", 4))
    assert jax.eval_shape(lambda w: nym.einsum("x equation -> equation x", w), w).names == ("mlp", "embed")


def test_a_signature_is_compiled_once(caplog):
    def compiled(value):
        caplog.clear()
        with jax.log_compiles():
            x = nym.full({"a": 5, "b": 7, "c": 2}, value)
            nym.einsum("a b c, a b c -> c b", x, x)
            x.rearrange("a b (c: d) -> d (m: b a)")
        return [record.getMessage() for record in caplog.records if "Compiling" in record.getMessage()]

    assert compiled(1.0) and not compiled(2.0)


def test_two_operands_take_one_dot_general_whatever_their_order(equations):
    def traced(equation, *operands):
        return equations(lambda *operands: nym.einsum(equation, *operands), *operands)

    for forms in (("b p e, e m -> b p m", "e m, b p e -> b p m"), ("-> batch pos mlp",) * 2):
        for equation, operands in zip(forms, ((x, w), (w, x)), strict=True):
            assert traced(equation, *operands) == [("dot_general", (2, 3, 2))]
    for equation, operands in (("b p e, p b m -> p b e m", (x, y)), ("p b m, b p e -> p b e m", (y, x))):
        assert traced(equation, *operands) == [("dot_general", (3, 2, 4, 2))]
    assert traced("b p e, e m -> p b m", x, w) == [("dot_general", (2, 3, 2)), ("transpose", (3, 2, 2))]
    assert traced("b p e -> b p e", x) == []
    assert traced("b p e -> b e", x) == [("reduce_sum", (2, 4))]


def test_several_operands_go_the_way_of_jax(equations):
    traced = equations(lambda *o: nym.einsum("e m, b p e, b p e -> b p m", *o), w, x, x)
    plain = equations(lambda *o: jnp.einsum("em,bpe,bpe->bpm", *o), w.array, x.array, x.array)
    assert traced == plain


def test_precision_and_element_type_reach_jax():
    half = [jax.eval_shape(lambda each: each.astype(jnp.bfloat16), each) for each in (x, w)]

    def dtype(equation, *operands, **options):
        return jax.eval_shape(lambda *operands: nym.einsum(equation, *operands, **options), *operands).dtype

    assert dtype("b p e, e m -> b p m", *half) == jnp.bfloat16
    for equation, operands in (("b p e, e m -> b p m", half), ("b p e -> b", half[:1]), ("b p e -> e p b", half[:1])):
        assert dtype(equation, *operands, preferred_element_type=jnp.float32) == jnp.float32
    for precision in ("highest", ["default", "highest"]):
        traced = jax.make_jaxpr(lambda *o, p=precision: nym.einsum("e m, b p e -> b p m", *o, precision=p))(*half[::-1])
        assert "HIGHEST" in str(traced)
    assert dtype("a ->", nym.ones({"a": 3}, jnp.int8)) == jnp.int8


def refused(equation, at, message, *operands, **aliases):
    shown = " and ".join(repr(each.shape) for each in operands)
    with refusal(f"cannot contract {shown}: {message}\n{equation}\n{' ' * at}^"):
        nym.einsum(equation, *operands, **aliases)


def test_a_caret_shows_what_does_not_fit():
    refused("b p e -> b", 0, "operands in the equation: 1, arrays given: 2", x, w)
    refused("b p e, e m, p -> b", 12, "operands in the equation: 3, arrays given: 2", x, w)
    refused("b p e, e m -> (n: b p) m", 14, "`einsum` cannot split or merge axes; use `rearrange`", x, w)
    refused("b p (n d) -> b p n", 4, "`einsum` cannot split or merge axes; use `rearrange`", x)
    refused("{pos} -> ... batch ...", 19, "'...' may occur only once in the result", x)
    refused("b p e -> b ...", 11, "this '...' needs one in an operand", x)
    refused("b p, e m -> b m", 0, f"{x.shape!r} has 3 axes, 2 are given here; write '...' for the others", x, w)
    refused("b p e, e m n -> b m", 7, f"{w.shape!r} has 2 axes, 3 are given here", x, w)
    refused("{embd}, {embed} -> ...", 1, f"no axis 'embd' in {x.shape!r}; did you mean 'embed'?", x, w)
    refused("b p e, e m -> b h", 16, "no operand has an axis 'h'", x, w)
    refused("-> batch ml", 9, "no operand has an axis 'ml'; did you mean 'mlp'?", x, w)
    lost = "(embed) is not mentioned; write '...' in the result to keep it, or name it in an operand to sum over it"
    refused("b p ... -> b", 11, lost, x)
    refused("{embd} -> ...", 1, f"no axis 'embd' in {x.shape!r}; did you mean 'embed'?", x)
    refused("{embed} -> ...", 1, "axis 'embed' has size 4 here, 5 was asked for", x, w, embed=5)


def test_each_identifier_stands_for_one_axis_and_each_axis_has_one():
    refused("b p e, c m -> b m", 7, "'e' and 'c' both stand for axis 'embed'", x, w)
    refused("i d, j d -> i j", 5, "'i' and 'j' both stand for axis 'embed'", w, w)
    refused("{embed e}, {embed} -> mlp", 7, "'embed' and 'e' both stand for axis 'embed'", w, w, e="embed")
    refused("b p e, e m -> b pos", 16, "'p' and 'pos' both stand for axis 'pos'", x, w)
    refused("b p e, b m -> e m", 7, "'b' stands for axis 'batch' already, and here for axis 'embed'", x, w)
    refused(
        "pos batch embed -> batch",
        0,
        f"'pos' is at the position of axis 'batch' of {x.shape!r}; give the axes in their order, or by name in braces",
        x,
    )
    refused("b p e, e m -> b m", 2, "'p' is axis 'mlp' by its alias, and axis 'pos' by its position", x, w, p="mlp")
    refused("b p e, e m -> b m", 4, "axis 'embed' has size 4 here, 5 was asked for", x, w, e=Axis("embed", 5))
    refused("-> b", 3, "axis 'batch' has size 2 here, 3 was asked for", x, b=Axis("batch", 3))
    refused("b p e, e m -> b m", 0, "the alias 'embed' is not used", x, w, embed=4)


def test_sizes_must_agree():
    narrow = nym.ones({"embed": 3, "mlp": 2})
    for equation in ("b p e, e m -> b p m", "{embed}, {embed} -> ...", "-> batch", "-> embed"):
        with refusal(f"axis 'embed' has size 4 and size 3 in {x.shape!r} and {narrow.shape!r}"):
            nym.einsum(equation, x, narrow)


def test_only_named_arrays_and_equations():
    for equation, operands, aliases, message in (
        ("-> batch", (x, np.ones(4)), {}, "A named array is needed, not an array of shape (4,)"),
        (x, (w,), {}, "`einsum` takes an equation such as 'b c, c e -> b e' first, not "),
        ("-> batch", (), {}, "`einsum` needs at least one array"),
        ("-> b", (x,), {"b": None}, "The alias 'b' must be an `Axis`, its name, or a size, not None"),
    ):
        with refusal(message, TypeError):
            nym.einsum(equation, *operands, **aliases)


SHARDED = {
    "b p e, e m -> b p m": (lambda x, w, v: nym.einsum("b p e, e m -> b p m", x, w), "dpp"),
    "e m, b p e -> m p b": (lambda x, w, v: nym.einsum("e m, b p e -> m p b", w, x), "ppd"),
    "b p e -> e b": (lambda x, w, v: nym.einsum("b p e -> e b", x), "md"),
    "two": (lambda x, w, v: nym.einsum("-> embed batch", x, v), "md"),
    "three": (lambda x, w, v: nym.einsum("{embed}, {embed}, {embed} -> mlp ...", x, w, v), "pdp"),
}


def test_sharded_operands(check_sharded, draw):
    operands = draw(batch=8, pos=3, embed=4), draw(embed=4, mlp=6), draw(embed=4, batch=8)
    check_sharded(SHARDED, *operands, outside=SHARDED)
