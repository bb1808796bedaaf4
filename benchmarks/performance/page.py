"""The page of the documentation that shows all results, written from the files in benchmarks/results."""

from collections.abc import Sequence

from .measure import Row, Spread
from .results import Group, Results


TITLES = {
    "dispatch": "Calls of compiled functions",
    "dispatch_mesh": "Calls of compiled functions on a mesh",
    "elementwise": "Elementwise operations and reductions, outside `jit`",
    "rearranging": "Operations that change axes, outside `jit`",
    "tracing": "Tracing and lowering a decoder",
    "programs": "The compiled programs of the decoder and of the models",
    "sharding": "Sharding",
    "transforms": "Transformations",
    "memory": "Memory",
    "checkpoints": "Checkpoints",
    "files": "Files",
    "imports": "Imports",
    "accelerator": "Training steps",
}
KINDS = {"cpu": "CPU", "gpu": "GPU"}
MISSED = "**over**"

INTRODUCTION = """\
# Benchmarks

*Reference. You need JAX.*

<!-- Written by `make bench` from benchmarks/results; change the text in benchmarks/performance/page.py. -->

What names cost: Axonym next to the same program by hand in JAX, with plain arrays and axis numbers, and next to
[Equinox](https://docs.kidger.site/equinox/) and [Haliax](https://haliax.readthedocs.io) where they have it.

{short}## How to read the tables

A ratio of 1.20 takes 1.20 times as long as the reference, or has as many more instructions or bytes. The last column is
what the reference takes: 1.5 of 4 us is nothing in a step of milliseconds. The *bar* is the largest ratio that this
project allows itself; rows above it, to two decimals, are marked {missed}. Ratios are medians, those of Axonym with the
tenth and the ninetieth percentile in parentheses; those without are of counts. `benchmarks/results` has the percentiles
of all.

The contenders of a row compute the same, in one process, and take turns in random order for up to 41 rounds, after an
untimed call and with the garbage collector off; a ratio compares figures of one round. Imports, first traces and peaks
of memory are of fresh processes. Imports and traces are in CPU time, with compiled bytecode and cached files.

Machines and versions of JAX differ by 5 to 10 %, so compare within a section. The tests check most rows without a
clock: they count calls, traces, equations, instructions and bytes.
{unmeasured}
`make bench` measures all in half an hour on two cores, in an environment of its own with Haliax; `make bench-smoke`
finds out whether all runs. `python -m benchmarks.performance` measures what is installed.
"""

NOTES = {
    "dispatch": """\
*Leaves* are the arrays of a model of Equinox modules. "JAX, same tree" is `jax.jit` with that model of plain arrays,
"Equinox" is `filter_jit`, which awaits each result.""",
    "dispatch_mesh": "Eight devices are threads of one CPU: these rows measure Python, not transfers, and vary more.",
    "elementwise": """\
Of small arrays, where the call dominates. Ratios far below 1 are of functions that dispatch many operations, where
Axonym compiles one for the names and sizes of its arguments.""",
    "rearranging": """\
Next to a reference that is compiled too, a layer costs a few times as much. Inside `jit`, names cost only tracing.""",
    "tracing": """\
Of 12 layers, 64 features and a vocabulary of 256. By hand, `jnp.einsum` takes time to order products, and
`jax.lax.dot_general` would not.""",
    "programs": """\
*Equations* are those of the traced program, *instructions* those of the optimized one. Steps have 4 layers, 256
features and a vocabulary of 1024. The loss selects logits by comparison, so that the vocabulary may be sharded; "JAX,
gathering" gathers them. The models are those of `examples/models` and `benchmarks/by_hand`, with 4 layers, 64 features
and a vocabulary of 512; ViT embeds 64 patches by a product, and by hand by a convolution. By hand all layers share one
causal mask; Axonym makes one in each, which the compiler merges. The instructions of both forms of Mixtral are the
same, and the compiler runs them in another order, so that other arrays are in memory at once.""",
    "sharding": """\
`jax.device_put` looks at each array even if all are in place, which a comparison of shardings need not.""",
    "transforms": """\
Over 8 layers; the body of *machinery alone* returns its input. A loop is traced and then evaluated, since arrays of 16
bits that its body takes from around it get gradients in float32, and only a trace shows which these are. Outside `jit`,
`fold` compiles at each call, to see changed globals, where `jax.lax.scan` keeps what it compiled for the same
function.""",
    "checkpoints": """\
Of 12 arrays over eight devices, on the disk of temporary files; peaks are beyond these. Orbax gets plain arrays; Axonym
also writes and compares checksums. Other work on the machine makes these rows vary.""",
    "files": """\
`save_safetensors` and `load_safetensors` of 12 arrays, sharded over both axes of a mesh; by hand each array is copied
to the host. The files are cached by the system.""",
    "imports": "A few objects decide which import pays for a full garbage collection, as the second row shows.",
    "accelerator": """\
Measured with JAX 0.11.2, which Axonym supported then: no GPU was at hand since. "Axonym" attends to all scores as by
hand does; "Axonym, cuDNN" lets `dot_product_attention` choose cuDNN's kernel.""",
}

IN_SHORT = "For each group with bars, the row closest to its bar on CPUs, or furthest above it."

UNMEASURED = """
No GPU was measured so far; the GPU program is run on CPUs with tiny sizes, to check that it works.
"""


def page(found: Sequence[Results]) -> str:
    """Returns the page with these results, each in a section of its own."""
    cpus = [one for one in found if one.device == "cpu"]
    short = _short(cpus[-1]) if cpus else ""
    unmeasured = UNMEASURED if found == cpus else ""
    introduction = INTRODUCTION.format(missed=MISSED, short=short, unmeasured=unmeasured)
    notes = dict(NOTES)  # Each stands once, where its group comes first.
    return "\n".join([introduction, *(_section(one, notes) for one in found)])


def _short(found: Results) -> str:
    rows = [row for group in found.groups.values() for row in _closest(group)]
    who = [one for one in _contenders(rows) if one == "Haliax"]
    cells = [[row.what, row.against, f"{row.bar:g}", *(_cell(row, one) for one in ("Axonym", *who))] for row in rows]
    lines = _table(["what", "against", "bar", "Axonym", *who], cells, words=2)
    return f"## In short\n\n{IN_SHORT}\n\n{lines}\n\n"


def _closest(group: Group) -> list[Row]:
    """Returns the row of a group that is closest to its bar, or furthest above it; nothing if none has a bar."""
    barred = [row for row in group.rows if row.bar]
    return [max(barred, key=lambda row: row.ratios["Axonym"].median / (row.bar or 1))] if barred else []


def _section(found: Results, notes: dict[str, str]) -> str:
    python = ".".join(found.python.split(".")[:2])
    title = f"## {KINDS[found.device]}, Python {python}, JAX {found.versions['jax']}"
    parts = [title, _setting(found), *found.missing]
    parts += [_group(name, group, notes.pop(name, "")) for name, group in found.groups.items()]
    return "\n\n".join(parts) + "\n"


def _setting(found: Results) -> str:
    machine = found.machine
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    rows = [row for group in found.groups.values() for row in group.rows if row.bar is not None]
    missed, every = sum(row.missed for row in rows), sum(len(group.rows) for group in found.groups.values())
    smoke = " **A smoke run: these figures mean nothing.**" if found.smoke else ""
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']:g} GiB, {machine['system']}; "
        f"Python {found.python}, {versions}. {len(rows)} of {every} rows have a bar; {len(rows) - missed} of these are "
        f"within it.{smoke}"
    )


def _group(name: str, group: Group, note: str) -> str:
    models = [row for row in group.rows if _model(row)]
    rows = [row for row in group.rows if row not in models]
    who = _contenders(rows)
    references = {row.against for row in rows}
    alike = len(references) == 1
    against = f", against {references.pop()}" if alike else ""
    words = ["what"] if alike else ["what", "against"]
    units = {row.unit for row in rows}
    unit = units.pop() if len(units) == 1 else ""
    head = [*words, "bar", "Axonym", *who, f"the reference takes{f', {unit}' if unit else ''}"]
    cells = [[row.what, *([] if alike else [row.against]), *_cells(row, who, unit)] for row in rows]
    tables = [_table(head, cells, words=len(words))] if rows else []
    parts = [f"### {TITLES[name]}", f"{_origin(name, group)}{against}.\n{note}".rstrip(), *tables]
    return "\n\n".join([*parts, *([_models(models)] if models else [])])


def _model(row: Row) -> str:
    """Returns the model whose program a row counts; nothing if it is a row of another kind."""
    what, _, model = row.what.rpartition(", ")
    return model if what.startswith(row.unit) and row.against == f"{model} by hand" else ""


def _models(rows: Sequence[Row]) -> str:
    """Returns a table with a line for each model and a column for each of its counts."""
    counts = list(dict.fromkeys(row.what.rpartition(", ")[0] for row in rows))
    texts = {row.what: f"{_cell(row, 'Axonym')} of {_figure(row.taken)}" for row in rows}
    models = dict.fromkeys(map(_model, rows))
    cells = [[model, *(texts.get(f"{count}, {model}", "") for count in counts)] for model in models]
    bars = ", ".join(dict.fromkeys(f"{row.bar:g}" for row in rows if row.bar))
    head = f"| of the model by hand{f', bar {bars}' if bars else ''} "
    return "\n".join([head + _line(counts), "|---|" + "---:|" * len(counts), *map(_line, cells)])


def _origin(name: str, group: Group) -> str:
    """Returns what measured a group, of which commit, when, and on which devices."""
    options = "--device gpu" if name == "accelerator" else f"--only {name}"
    kinds = " and ".join(f"{group.devices.count(kind)} x {kind}" for kind in dict.fromkeys(group.devices))
    commit = f" at {group.commit}" if group.commit else ""
    return f'`make bench ARGS="{options}"`{commit}, {group.date}, on {kinds}'


def _contenders(rows: Sequence[Row]) -> list[str]:
    """Returns who else has a ratio, Haliax and Equinox first."""
    found = dict.fromkeys(who for row in rows for who in row.ratios if who != "Axonym")
    return sorted(found, key=lambda who: (who != "Haliax", who != "Equinox", who))


def _cells(row: Row, who: Sequence[str], unit: str) -> list[str]:
    bar = "" if row.bar is None else f"{row.bar:g}"
    others = [_cell(row, one) for one in ("Axonym", *who)]
    is_said = row.unit == unit or row.what.startswith(row.unit)
    return [bar, *others, _figure(row.taken) if is_said else f"{_figure(row.taken)} {row.unit}"]


def _cell(row: Row, who: str) -> str:
    if who not in row.ratios:
        return ""
    if who != "Axonym":
        return _figure(row.ratios[who].median)
    return f"{_ratio(row.ratios[who])} {MISSED}" if row.missed else _ratio(row.ratios[who])


def _ratio(spread: Spread) -> str:
    median, low, high = (_figure(one) for one in (spread.median, spread.p10, spread.p90))
    return median if spread.p10 == spread.p90 else f"{median} ({low}-{high})"


def _figure(value: float) -> str:
    """Returns three digits, and never an exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _table(head: Sequence[str], cells: Sequence[Sequence[str]], words: int) -> str:
    """Returns a table whose first columns hold words, and the others figures."""
    return "\n".join([_line(head), "|" + "---|" * words + "---:|" * (len(head) - words), *map(_line, cells)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
