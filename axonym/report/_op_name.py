"""The paths of scopes that JAX stores with each operation of a program: the layer, the operation and the pass."""

import re


_CONTROL_FLOW_SCOPES = {
    *("while", "body", "cond", "branch", "closed_call", "eval_jaxpr"),
    *("checkpoint", "rematted_computation", "shard_map"),
}

# A transformation around a part of the path: `jvp(Stacked)`.
_TRANSFORM = re.compile(
    r"\b(?:jit|jvp|vmap|transpose|remat|checkpoint|custom_jvp|custom_vjp)\(([^()]*(?:\([^()]*\)[^()]*)*)\)"
)
# Several paths that the compiler has made one of: `jit(step)/(up/dot:down/dot)`. Groups: what they share, the paths.
_MERGED_PATHS = re.compile(r"((?:.*/)?)\((.*)\)")
# The scope of an operation of Axonym, `dot(embed -> mlp)`; its group holds the axes.
AXES_SCOPE = re.compile(r"\w+\(([^()]*)\)")


def is_in_backward_pass(op_name: str) -> bool:
    """Returns whether a path of scopes belongs to a backward pass."""
    return "transpose(" in op_name


def split_op_name(op_name: str) -> tuple[str, str]:
    """Returns the layer and the operation that a path of scopes names.

    Example: `jit(step)/jvp(Stacked)/while/body/closed_call/Stacked/up/dot(embed -> mlp)/dot_general` is `Stacked/up`
    and `dot(embed -> mlp)`.
    """
    path, previous = op_name, ""
    while path != previous:
        previous, path = path, _TRANSFORM.sub(r"\1", path)
    if merged := _MERGED_PATHS.fullmatch(path):
        pairs = [split_op_name(merged[1] + branch) for branch in merged[2].split(":")]
        layers, operations = (dict.fromkeys(filter(None, column)) for column in zip(*pairs, strict=True))
        return " + ".join(layers), " + ".join(operations)
    scopes = [
        scope for scope in path.split("/")[1:] if scope and scope not in _CONTROL_FLOW_SCOPES and "=" not in scope
    ]
    if not scopes:
        return "", ""
    named = (position for position, scope in enumerate(scopes) if AXES_SCOPE.fullmatch(scope))
    operation = next(named, len(scopes) - 1)
    layers = scopes[:operation]
    if layers and layers.count(layers[0]) > 1:  # the transformation of a loop and the loop's body both name the layer
        last = len(layers) - 1 - layers[::-1].index(layers[0])
        layers = layers[last:]
    return "/".join(layers), scopes[operation]
