"""The paths of scopes that JAX stores with each operation of a program: the layer, the operation and the pass."""

import re


_TRANSFORM = re.compile(
    r"\b(?:jit|jvp|vmap|transpose|remat|checkpoint|custom_jvp|custom_vjp)\(([^()]*(?:\([^()]*\)[^()]*)*)\)"
)
_STRUCTURE = {
    "while",
    "body",
    "cond",
    "closed_call",
    "eval_jaxpr",
    "checkpoint",
    "rematted_computation",
    "branch",
    "shard_map",
}
AXES_SCOPE = re.compile(r"\w+\(([^()]*)\)")


def is_in_backward_pass(op_name: str) -> bool:
    """Returns whether a path of scopes belongs to a backward pass."""
    return "transpose(" in op_name


def split_op_name(op_name: str) -> tuple[str, str]:
    """Returns the layer and the operation that a path of scopes names.

    Example: `jit(step)/jvp(Stacked)/while/body/closed_call/Stacked/up/dot(embed -> mlp)/dot_general` is `Stacked/up`
    and `dot(embed -> mlp)`.
    """
    path, before = op_name, ""
    while path != before:
        before, path = path, _TRANSFORM.sub(r"\1", path)
    if merged := re.fullmatch(r"((?:.*/)?)\((.*)\)", path):  # several that the compiler has made one of
        pairs = [split_op_name(merged[1] + part) for part in merged[2].split(":")]
        layers, operations = (dict.fromkeys(filter(None, column)) for column in zip(*pairs, strict=True))
        return " + ".join(layers), " + ".join(operations)
    parts = [part for part in path.split("/")[1:] if part and part not in _STRUCTURE and "=" not in part]
    if not parts:
        return "", ""
    named = next((at for at, part in enumerate(parts) if AXES_SCOPE.fullmatch(part)), len(parts) - 1)
    layers = parts[:named]
    if layers and layers.count(layers[0]) > 1:  # the transformation of a loop and the loop's body both name the layer
        layers = layers[len(layers) - 1 - layers[::-1].index(layers[0]) :]
    return "/".join(layers), parts[named]
