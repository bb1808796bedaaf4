"""Random cases of attention with sharded positions, each made by a seed alone, and compared with NumPy in float64."""

import dataclasses
import traceback
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import axonym as nym
from axonym.nn import AttentionMask as Mask


AXES = ("batch", "heads", "group", "pos", "key_pos", "dim", "out")
"""The order of axes in which NumPy computes."""

MESH_AXES = ("data", "ring", "inner", "model")
MESHES = [(1, 8, 1, 1), (2, 4, 1, 1), (1, 4, 1, 2), (1, 2, 1, 1), (1, 2, 2, 2), (2, 2, 2, 1), (1, 2, 4, 1)]
"""The sizes of these axes. Positions are mapped to `ring`, and to `inner` if it is more than 1 or has to be mixed."""

CONTEXTS = ("auto", "all_gather", "ring", "all_to_all", "mixed")


@dataclasses.dataclass
class Allowed:
    """A mask twice: for Axonym, and which pairs of all axes it allows."""

    mask: Any
    array: np.ndarray
    text: str


@dataclasses.dataclass
class Case:
    """Attention on a mesh.

    Attributes:
        arrays: What is differentiated, with the names of its axes: query, key and value, perhaps bias, sinks and scale.
        names: The names of the axes of each.
        factors: Factors of the result, to get gradients.
        options: Other arguments of `dot_product_attention`.
    """

    context: str
    mesh: tuple[int, ...]
    axis_types: str
    arrays: dict[str, np.ndarray]
    names: dict[str, tuple[str, ...]]
    factors: np.ndarray
    mask: Allowed | None
    positions: Any
    options: dict[str, Any]

    def __str__(self) -> str:
        lines = [f"context {self.context} on {self.axis_types} mesh {dict(zip(MESH_AXES, self.mesh, strict=True))}"]
        for label, array in self.arrays.items():
            lines.append(f"{label} {dict(zip(self.names[label], array.shape, strict=True))}")
        positions = None if self.positions is None else self.positions.array.tolist()
        text = None if self.mask is None else self.mask.text
        return "\n".join([*lines, f"mask {text}", f"positions {positions}", str(self.options)])


def make_case(seed: int) -> Case:
    """Draws a case."""
    random, numbers = Random(seed), np.random.default_rng(seed)
    mesh = random.choice(MESHES)
    data, ring, inner, model = mesh
    devices, context = ring * inner, random.choice(CONTEXTS)
    parts = random.randint(1, 3)  # of heads
    if context == "all_to_all":
        parts = devices
    elif context == "mixed":
        parts = random.randint(1, 2) * inner
    has_same_keys = random.random() < 0.8
    sizes = {
        "batch": data * random.randint(1, 2),
        "heads": model * parts,
        "group": random.randint(1, 3),
        "pos": 2 * devices * random.randint(1, 3),
        "key_pos": devices * random.randint(1, 5),
        "dim": random.randint(1, 5),
        "out": random.randint(1, 5),
    }
    if has_same_keys:
        sizes["key_pos"] = sizes["pos"]

    def draw_names(*needed: str, optional: tuple[str, ...], chance: float = 0.8) -> tuple[str, ...]:
        names = [*needed, *(name for name in optional if random.random() < chance)]
        random.shuffle(names)
        return tuple(names)

    heads = ("heads",) if context in ("all_to_all", "mixed") or random.random() < 0.7 else ()
    names = {
        "query": draw_names("pos", "dim", *heads, optional=("batch", "group")),
        "key": draw_names("key_pos", "dim", *heads, optional=("batch",)),
        "value": draw_names("key_pos", "out", *heads, optional=("batch",)),
    }
    score_axes = tuple(name for name in AXES[:3] if name in {*names["query"], *names["key"]})
    if random.random() < 0.4:
        positions = random.choice([("key_pos",), ("pos",), ()])
        names["bias"] = draw_names(*positions, optional=score_axes, chance=0.5)
    if random.random() < 0.4:
        names["sinks"] = draw_names(optional=score_axes, chance=0.6)
    if random.random() < 0.3:
        names["scale"] = draw_names(optional=tuple(name for name in names["query"] if name != "dim"), chance=0.4)
    arrays = {label: numbers.normal(size=[sizes[name] for name in part]) for label, part in names.items()}
    arrays = {label: array.astype(np.float32) for label, array in arrays.items()}

    batch = ("batch",) if "batch" in score_axes else ()
    positions, mask = None, None
    queries, keys = (expand(np.arange(sizes[name]), (name,)) for name in ("pos", "key_pos"))
    if has_same_keys and random.random() < 0.7:
        positions = draw_positions(random, numbers, sizes, devices, batch)
        queries, keys = (expand(positions.array, positions.rename({"pos": name}).names) for name in ("pos", "key_pos"))
    if random.random() < 0.9:
        mask = draw_mask(random, numbers, sizes, queries, keys, batch, depth=random.randint(0, 2))
    result_names = tuple(name for name in AXES if name in {*names["query"], *names["key"], *names["value"]})
    result_names = tuple(name for name in result_names if name not in ("dim", "key_pos"))
    factors = numbers.normal(size=[sizes[name] for name in result_names])
    return Case(
        context=context,
        mesh=mesh,
        axis_types=random.choice(("auto", "explicit")),
        arrays=arrays,
        names={**names, "result": result_names},
        factors=factors.astype(np.float32),
        mask=mask,
        positions=positions,
        options={"soft_cap": random.choice([None, 0.7, 3.0]), "block_size": random.randint(1, 9)},
    )


def draw_positions(
    random: Random, numbers: Any, sizes: dict[str, int], devices: int, batch: tuple[str, ...]
) -> nym.NamedArray:
    """Draws where tokens are: in order, in zigzag, anywhere, or any numbers, of each row of a batch if there is one."""
    kind, size = random.choice(("contiguous", "zigzag", "permuted", "any")), sizes["pos"]
    if kind == "contiguous":
        return nym.NamedArray(np.arange(size), ("pos",))
    if kind == "zigzag":
        chunks = np.arange(size).reshape(2 * devices, -1)
        order = [part for device in range(devices) for part in (chunks[device], chunks[2 * devices - 1 - device])]
        return nym.NamedArray(np.concatenate(order), ("pos",))
    if kind == "permuted":
        return nym.NamedArray(numbers.permutation(size), ("pos",))
    names = ("pos", *batch)
    return nym.NamedArray(numbers.integers(0, size, [sizes[name] for name in names]), names)


def draw_mask(
    random: Random,
    numbers: Any,
    sizes: dict[str, int],
    queries: np.ndarray,
    keys: np.ndarray,
    batch: tuple[str, ...],
    depth: int,
) -> Allowed:
    """Draws a mask of queries and keys at these positions, which combines others up to a depth."""
    if depth:
        first, second = (draw_mask(random, numbers, sizes, queries, keys, batch, depth - 1) for _ in range(2))
        kind = random.choice("&|~")
        if kind == "&":
            return Allowed(first.mask & second.mask, first.array & second.array, f"({first.text} & {second.text})")
        if kind == "|":
            return Allowed(first.mask | second.mask, first.array | second.array, f"({first.text} | {second.text})")
        return Allowed(~first.mask, ~first.array, f"~{first.text}")
    kind = random.choice(("causal", "causal", "window", "prefix", "segments", "segments", "keys"))
    if kind == "causal":
        start = random.choice((0, 0, 0, random.randint(-3, 3)))
        return Allowed(Mask.causal(start), queries + start >= keys, f"causal({start})")
    if kind == "window":
        size = random.randint(1, sizes["pos"])
        return Allowed(Mask.sliding_window(size), np.abs(queries - keys) < size, f"window({size})")
    if kind == "prefix":
        if batch and random.random() < 0.5:
            lengths = numbers.integers(0, sizes["key_pos"] + 1, sizes["batch"])
            named = nym.NamedArray(lengths.astype(np.int32), ("batch",))
            return Allowed(Mask.prefix(named), keys < expand(lengths, ("batch",)), f"prefix({lengths})")
        length = random.randint(0, sizes["key_pos"])
        return Allowed(Mask.prefix(length), keys < length, f"prefix({length})")
    query_ids, key_ids = (draw_ids(random, numbers, sizes, (*batch, name)) for name in ("pos", "key_pos"))
    if kind == "keys":
        allowed = nym.NamedArray(key_ids.array > 0, key_ids.names)
        return Allowed(Mask.explicit(allowed), expand(allowed.array, allowed.names), f"keys({allowed.array})")
    if sizes["pos"] == sizes["key_pos"]:
        key_ids = query_ids.rename({"pos": "key_pos"})
        mask = Mask.segment_ids(query_ids)
    else:
        mask = Mask.segment_ids(query_ids, key_ids)
    array = expand(query_ids.array, query_ids.names) == expand(key_ids.array, key_ids.names)
    return Allowed(mask, array, f"segments({query_ids.array})")


def draw_ids(random: Random, numbers: Any, sizes: dict[str, int], names: tuple[str, ...]) -> nym.NamedArray:
    """Draws the documents along the last of these axes, and along the first one or the same in all rows."""
    if random.random() < 0.5:
        names = names[-1:]
    ids = numbers.integers(0, 4, [sizes[name] for name in names])
    return nym.NamedArray(np.sort(ids, axis=-1).astype(np.int32), names)


def expand(array: Any, names: tuple[str, ...]) -> np.ndarray:
    """Returns an array with all axes in their order, of size 1 where it has none."""
    array = np.asarray(array)
    order = sorted(range(len(names)), key=lambda dim: AXES.index(names[dim]))
    missing = tuple(dim for dim, name in enumerate(AXES) if name not in names)
    return np.expand_dims(array.transpose(order), missing)


def reduce_to(array: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """Returns an array with all axes, summed over those that these names lack, in the order of the names."""
    present = [name for name in AXES if name in names]
    array = array.sum(tuple(dim for dim, name in enumerate(AXES) if name not in names))
    return array.transpose([present.index(name) for name in names])


def attend_plainly(case: Case) -> dict[str, np.ndarray]:
    """Returns the result and the gradients of all arrays, in float64."""
    arrays = {label: expand(array.astype(np.float64), case.names[label]) for label, array in case.arrays.items()}
    query, key, value = arrays["query"], arrays["key"], arrays["value"]
    key_dim, dim, out_dim = (AXES.index(name) for name in ("key_pos", "dim", "out"))
    scale, soft_cap = arrays.get("scale", np.float64(query.shape[dim]) ** -0.5), case.options["soft_cap"]
    products = (query * key).sum(dim, keepdims=True)
    scores, slope = products * scale, 1.0
    if soft_cap is not None:
        scores = soft_cap * np.tanh(scores / soft_cap)
        slope = 1 - (scores / soft_cap) ** 2
    scores = scores + arrays.get("bias", 0)
    allowed = np.ones_like(scores, bool) if case.mask is None else np.broadcast_to(case.mask.array, scores.shape)
    has_keys = allowed.any(key_dim, keepdims=True)
    weights = np.where(allowed, np.exp(scores), 0)
    total = np.where(has_keys, weights.sum(key_dim, keepdims=True), 1)
    weights = weights / total
    averages = (weights * value).sum(key_dim, keepdims=True)
    shares = 1.0  # of keys, the rest being that of the sink
    if "sinks" in arrays:
        shares = np.where(has_keys, total / (total + np.exp(arrays["sinks"])), 0)
    results = {"result": averages * shares}

    factors = expand(case.factors.astype(np.float64), case.names["result"])
    d_averages = factors * shares
    d_log_total = (factors * averages).sum(out_dim, keepdims=True) * shares * (1 - shares)
    d_weights = (d_averages * value).sum(out_dim, keepdims=True)
    d_scores = weights * (d_weights - (weights * d_weights).sum(key_dim, keepdims=True) + d_log_total)
    d_products = d_scores * slope
    results |= {
        "query": d_products * scale * key,
        "key": d_products * scale * query,
        "value": weights * d_averages,
        "bias": d_scores,
        "sinks": -d_log_total,
        "scale": d_products * products,
    }
    return {label: reduce_to(results[label], case.names[label]) for label in case.names}


def attend(case: Case) -> dict[str, np.ndarray]:
    """Returns the same by Axonym, on the mesh."""
    axis_mesh = nym.create_mesh(
        case.mesh, MESH_AXES, axis_types=case.axis_types, devices=jax.devices()[: int(np.prod(case.mesh))]
    )
    operands = {label: nym.NamedArray(jnp.asarray(array), case.names[label]) for label, array in case.arrays.items()}
    factors = nym.NamedArray(jnp.asarray(case.factors), case.names["result"])
    mask = None if case.mask is None else case.mask.mask

    def compute_loss(operands: Any, positions: Any) -> Any:
        query, key, value = (operands[label] for label in ("query", "key", "value"))
        options = {label: operands[label] for label in ("bias", "sinks", "scale") if label in operands}
        result = nym.nn.dot_product_attention(
            *("key_pos", "dim", query, key, value, mask),
            **(options | case.options),
            QPos="pos",
            positions=positions,
            context=case.context,
        )
        return nym.sum(result * factors).scalar(), result

    has_inner = case.mesh[MESH_AXES.index("inner")] > 1 or case.context == "mixed"
    positions = ("ring", "inner") if has_inner else "ring"
    mapping = {"batch": "data", "pos": positions, "heads": "model"}
    step = nym.named_jit(jax.value_and_grad(compute_loss, has_aux=True), axis_resources=mapping)
    with jax.set_mesh(axis_mesh):
        (_, result), gradients = step(operands, case.positions)
    results = {"result": result, **gradients}
    return {label: np.asarray(results[label].rearrange(case.names[label]).array) for label in case.names}


def find_attention_problems(case: Case) -> list[str]:
    """Returns what differs from NumPy, or the error."""
    try:
        results = attend(case)
    except Exception:
        return [traceback.format_exc()]
    expected = attend_plainly(case)
    problems = []
    for label, array in expected.items():
        error = np.abs(results[label] - array).max(initial=0) / max(1, np.abs(array).max(initial=0))
        if not error < 1e-4:
            problems.append(f"{label} differs by {error:.2g} of its largest value")
    return problems
