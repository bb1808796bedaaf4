"""`einsum`: products of arrays summed over axes, written as an equation."""

from typing import Any

from .._ground.caches import cached_plan
from .._ground.formats import format_axes, format_value, suggest_name
from ._axis import AxisSelector, Names, Operand, check_matching_sizes, intern_names
from ._base import N, check_named
from ._dot import contract_axes, get_natural_order
from ._pattern_parser import REST, Alias, Binding, Expression, Fault, check_aliases, explain_fault, parse_pattern


def einsum(
    equation: str,
    /,
    *arrays: N,
    precision: Any = None,
    preferred_element_type: Any = None,
    **aliases: AxisSelector | int,
) -> N:
    """Multiplies arrays and sums over the axes that the result lacks, see `jax.numpy.einsum`.

    Axes of the same name are aligned. An equation has the operands left of its `->`, separated by commas, and the axes
    of the result right of it. Each operand is written in one of two ways:

    - Without braces its identifiers stand for its axes by position, whatever their names, and `...` for any number of
      other axes: `"b h c, c e -> b h e"`. The axes keep their names; an identifier is the same axis in all operands.
    - In braces they are names of its axes, in any order; other axes need no `...`: `"{c}, {c} -> ..."`.

    A single pair of braces is for all operands together, each of which has some of the axes: `"{c e} -> e"` sums over
    `c` and keeps all others, as leading axes if there is no `...` in the result.

    Without operands the result names all axes to keep, and the others are summed over: `"-> b e"`. `...` in the
    result stands for the axes that no operand mentions, in the order of `dot`: those of several arrays first. Without
    it there must be no such axes.

    Args:
        equation: The equation.
        *arrays: Arrays of any axes, one for each operand.
        precision: As for `jax.numpy.einsum`.
        preferred_element_type: Element type in which the sum is kept and returned.
        **aliases: The axis, its name, or only the size that an identifier stands for.

    Returns:
        Array with the axes of the result, in that order. Two arrays take one `dot_general`, in the order of the two
        that needs no transpose if there is one; more arrays are multiplied in the order that `jax.numpy.einsum` finds.

    Raises:
        TypeError: If no array is given, one is not named, or an alias has a wrong type.
        ValueError: If an axis is missing, would be summed over without being mentioned, has two sizes, or the equation
            cannot be parsed: a caret shows where.

    Example:
        >>> import axonym as nym
        >>> x, w = nym.ones({"batch": 2, "pos": 5, "embed": 3}), nym.ones({"embed": 3, "mlp": 4})
        >>> nym.einsum("b p e, e m -> b p m", x, w).shape
        (batch: 2, pos: 5, mlp: 4)
        >>> nym.einsum("{embed}, {embed} -> ...", x, w).shape
        (batch: 2, pos: 5, mlp: 4)
        >>> nym.einsum("-> mlp batch", x, w).shape
        (mlp: 4, batch: 2)
    """
    if not isinstance(equation, str):
        raise TypeError(f"`einsum` takes an equation such as 'b c, c e -> b e' first, not {format_value(equation)}.")
    if not arrays:
        raise TypeError("`einsum` needs at least one array.")
    for x in arrays:
        check_named(x)
    array_axes = tuple([(x.names, x.array.shape) for x in arrays])
    summed_names, names = _plan_einsum(equation, array_axes, check_aliases(aliases))
    return contract_axes(arrays, summed_names, names, precision, preferred_element_type, function="einsum")


@cached_plan
def _plan_einsum(
    equation: str,
    array_axes: tuple[Operand, ...],
    aliases: tuple[tuple[str, Alias], ...],
) -> tuple[Names, Names]:
    """Returns the names summed over, and the names of the result in order."""
    expression = parse_pattern(equation)
    sizes = check_matching_sizes(*array_axes)
    text = " and ".join(format_axes(*axes) for axes in array_axes)
    with explain_fault(equation, f"cannot contract {text}"):
        _check_equation(expression, len(array_axes))
        binding = Binding(expression, aliases)
        if _has_shared_braces(expression):
            binding.match_axes(expression.operands[0], tuple(sizes), tuple(sizes.values()))
        elif expression.operands:
            for side, (names, shape) in zip(expression.operands, array_axes, strict=True):
                binding.match_axes(side, names, shape)
        natural_order = get_natural_order(tuple(names for names, _ in array_axes), ())
        unmentioned = tuple(name for name in natural_order if name not in binding.axes.values())
        names = _order_result_names(expression, binding, sizes, unmentioned)
    return tuple(name for name in sizes if name not in names), intern_names(names)


def _check_equation(expression: Expression, array_count: int) -> None:
    for side in (*expression.operands, expression.result):
        for group in side.groups:
            raise Fault(group.at, "`einsum` cannot split or merge axes; use `rearrange`")
    if len(expression.result.rest) > 1:
        raise Fault(expression.result.rest[1].at, "'...' may occur only once in the result")
    operand_count = len(expression.operands)
    if operand_count not in (0, array_count) and not _has_shared_braces(expression):
        # The caret is at the first operand without an array, or at the last operand.
        raise Fault(
            expression.operands[min(operand_count, array_count + 1) - 1].at,
            f"operands in the equation: {operand_count}, arrays given: {array_count}",
        )
    if expression.result.rest and operand_count and all(side.ordered and not side.rest for side in expression.operands):
        raise Fault(expression.result.rest[0].at, "this '...' needs one in an operand")


def _has_shared_braces(expression: Expression) -> bool:
    """Returns whether one pair of braces is for all operands."""
    return len(expression.operands) == 1 and not expression.operands[0].ordered


def _order_result_names(expression: Expression, binding: Binding, sizes: dict[str, int], unmentioned: Names) -> Names:
    """Returns the names of the result, with the axes that no operand mentions in place of `...`."""
    result = expression.result
    names: list[str] = []
    for term in result.terms:
        name = binding.get_name(term.name)
        if term.name == REST:
            names.append(REST)
        elif name not in sizes:
            raise Fault(term.at, f"no operand has an axis {name!r}{suggest_name(name, [*binding.axes, *sizes])}")
        else:
            binding.bind(term, name)
            binding.check_size(term, sizes[name])
            names.append(name)
    other_names = tuple(name for name in unmentioned if name not in names)
    # A pair of braces for all operands lists what to sum over, so the other axes are kept, and lead.
    if _has_shared_braces(expression) and not result.rest:
        return (*other_names, *names)
    if REST in names:
        position = names.index(REST)
        return (*names[:position], *other_names, *names[position + 1 :])
    # Without operands in the equation, axes that the result does not name are summed over.
    if other_names and expression.operands:
        problem = f"{format_axes(other_names)} is not mentioned"
        raise Fault(
            result.at, f"{problem}; write '...' in the result to keep it, or name it in an operand to sum over it"
        )
    return tuple(names)
