"""The page of the documentation that shows all results: written from the files in benchmarks/results alone."""

from collections.abc import Sequence

from .measure import Row, Spread
from .results import Group, Results


TITLES = {
    "dispatch": "Calls of compiled functions",
    "dispatch_mesh": "Calls of compiled functions on a mesh",
    "elementwise": "Elementwise operations and reductions, outside `jit`",
    "rearranging": "Operations that change axes, outside `jit`",
    "tracing": "Tracing and lowering a decoder",
    "programs": "The compiled programs of the decoder",
    "sharding": "Sharding",
    "transforms": "Functions of functions",
    "memory": "Memory",
    "imports": "Import",
    "accelerator": "Training steps",
}
KINDS = {"cpu": "CPU", "gpu": "GPU"}
MISSED = "**over**"

INTRODUCTION = """\
# Benchmarks

<!-- Written by `make bench` from benchmarks/results; a change belongs into benchmarks/performance/page.py. -->

What names cost, measured. Each row compares Axonym with the same thing written by hand in JAX, with
plain arrays and axis numbers, the way its own documentation does it; where it makes sense also with
[Equinox](https://docs.kidger.site/equinox/) and with [Haliax](https://haliax.readthedocs.io).

{short}## How to read it

A figure such as 1.20 says that Axonym takes 1.20 times what the reference takes: 1.00 is a name that
costs nothing, and less than that is a gain. The *bar* is the most that this project allows itself; a row
that is above it, to two digits behind the point, says {missed}. The last column has what the reference
takes by itself, and with it what a ratio is worth: 1.5 of 4 us is nothing in a program whose steps take
milliseconds.

In parentheses are the tenth and the ninetieth percentile. Where there are none, the figure is a count
and the same each time.

Ratios far below 1 have one reason: outside of `jit`, functions of `jax.numpy` such as `einsum`,
`softmax` and indexing are many calls each, while Axonym keeps one compiled program for an operation
and the names and sizes that it was called with. Where the reference is in `jax.jit` as well, an operation
costs some more than by hand, and a layer, which is several, a few times as much. Inside of `jit` names
cost only while a program is traced.

## What the rows are

- *Leaves* are the arrays of a tree. Calls of compiled functions have a model of Equinox modules with five
  small arrays each; the column "JAX, same tree" is `jax.jit` with that model of plain arrays, which shows
  how much of the cost is the tree, and Equinox's is `filter_jit` with the same.
- The *decoder* has 12 layers, 64 features and a vocabulary of 256; steps are measured with 4 layers, 256
  features and a vocabulary of 1024. *Equations* are those of the traced program, *instructions* those of
  the one that XLA has optimized.
- The loss of the decoder by hand picks the logits of the targets by comparison, as Axonym's does, because
  that divides a vocabulary over devices. The column "JAX, gathering" is the same decoder with a gather;
  where it is below 1, that one takes less than both.
- *Functions of functions* run over 8 layers. *Machinery alone* has a body that returns what it is given.

## How it is measured

The contenders of a row take turns: each round times every one of them once, in a shuffled order, after a
call that is not timed and with the garbage collector off. A ratio is of two figures of the same round, so
that what slows the machine down slows both; the table has the median over up to 41 rounds. What is timed
is how long a call takes to return, as JAX's own dispatch is measured, a few calls in a row; results are
awaited in between. Equinox awaits the result of each call by itself. Compiled programs are
compared by what does not depend on the machine as well: instructions of the optimized program, bytes that
it accesses, and bytes of temporary memory.

All contenders run in one process, which has the devices that the row needs and nothing else. Imports, the
first trace in a process and the peak of memory are measured in fresh processes, in a shuffled order as
well; imports and traces in seconds of the processor, with compiled bytecode and files that the system has
cached. `import axonym` loads named arrays; meshes, partitioning, layers and the other namespaces are
loaded when they are first used, so a second row has the import of all of them.

Before they are timed, contenders are seen to compute the same, except for those of whom only traces,
shardings or memory are measured.

## Limits

- Ratios of eager operations are those of small arrays, for which the cost of the call is all there is. In
  large arrays it is nothing, and what counts is how many programs an operation is.
- By hand, products are `jnp.einsum`, as in most programs. Much of what tracing them takes is to find
  out in which order to multiply; with `jax.lax.dot_general` tracing by hand is faster.
- `jax.device_put` looks at each array, even if all are in place. Code that compares shardings by itself
  takes less than that, and less than `shard`.
- Several devices are several threads of one CPU. What a row of several devices says is how long Python
  takes, not how fast data moves, and its figures scatter.
- Machines and versions of JAX differ by 5 to 10 %, and by more where a row takes microseconds. Read
  figures of one section only.
- Python's garbage collector runs when enough objects are new, so which import pays for a full collection
  is a matter of a few objects. The row with the collector on shows what it is here.
- The tests of this project hold most of these rows without a clock: they count Python calls, traces,
  equations, instructions and bytes.
{unmeasured}
## Measure it yourself

```console
$ make bench                                    # about ten minutes on two cores
$ make bench-smoke                              # does everything run? no figures
$ make bench ARGS="--only dispatch imports"     # some groups
$ make bench ARGS="--device gpu"                # steps of training on a GPU
```

These set up an environment with Haliax of their own. In another one, `python -m benchmarks.performance`
measures what is there, and says what is left out.
"""

IN_SHORT = """\
For each group of the last section of CPUs below that has bars, the row that is closest to its bar, or
furthest above it."""

UNMEASURED = "- No GPU was measured so far; the program for it is run on CPUs, with tiny sizes, to see that it works.\n"


def page(found: Sequence[Results]) -> str:
    """Returns the page with these results, each in a section of its own."""
    cpus = [one for one in found if one.device == "cpu"]
    short = _short(cpus[-1]) if cpus else ""
    unmeasured = UNMEASURED if found == cpus else ""
    introduction = INTRODUCTION.format(missed=MISSED, short=short, unmeasured=unmeasured)
    return "\n".join([introduction, *(_section(one) for one in found)])


def _short(found: Results) -> str:
    rows = [row for group in found.groups.values() for row in _closest(group)]
    who = [one for one in _contenders(rows) if one == "Haliax"]
    cells = [[row.what, row.against, f"{row.bar:g}", *(_cell(row, one) for one in ("Axonym", *who))] for row in rows]
    lines = _table(["what", "against", "bar", "Axonym", *who], cells, words=2)
    return f"## In short\n\n{IN_SHORT}\n\n{lines}\n\n"


def _closest(group: Group) -> list[Row]:
    """Returns the row of a group that is closest to its bar, or furthest over it; nothing if none has one."""
    barred = [row for row in group.rows if row.bar]
    return [max(barred, key=lambda row: row.ratios["Axonym"].median / (row.bar or 1))] if barred else []


def _section(found: Results) -> str:
    python = ".".join(found.python.split(".")[:2])
    title = f"## {KINDS[found.device]}, Python {python}, JAX {found.versions['jax']}"
    parts = [title, _setting(found), *found.missing]
    parts += [_group(name, group) for name, group in found.groups.items()]
    return "\n\n".join(parts) + "\n"


def _setting(found: Results) -> str:
    machine = found.machine
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    rows = [row for group in found.groups.values() for row in group.rows if row.bar is not None]
    missed, every = sum(row.missed for row in rows), sum(len(group.rows) for group in found.groups.values())
    smoke = " **A smoke run: these figures say nothing.**" if found.smoke else ""
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']:g} GiB, {machine['system']}; "
        f"Python {found.python}, {versions}. {len(rows)} of {every} rows have a bar; {len(rows) - missed} of these are "
        f"within it.{smoke}"
    )


def _group(name: str, group: Group) -> str:
    who = _contenders(group.rows)
    references = {row.against for row in group.rows}
    alike = len(references) == 1
    against = f" Against {references.pop()}." if alike else ""
    words = ["what"] if alike else ["what", "against"]
    head = [*words, "bar", "Axonym", *who, "the reference takes"]
    cells = [[row.what, *([] if alike else [row.against]), *_cells(row, who)] for row in group.rows]
    when = f" Measured {group.date}" + (f" at {group.commit}." if group.commit else ".")
    return f"### {TITLES[name]}\n\n{_devices(group)}{when}{against}\n\n{_table(head, cells, words=len(words))}"


def _devices(group: Group) -> str:
    kinds = " and ".join(f"{group.devices.count(kind)} x {kind}" for kind in dict.fromkeys(group.devices))
    return f"Devices: {kinds}."


def _contenders(rows: Sequence[Row]) -> list[str]:
    """Returns who has a ratio beside Axonym, Haliax and Equinox first."""
    found = dict.fromkeys(who for row in rows for who in row.ratios if who != "Axonym")
    return sorted(found, key=lambda who: (who != "Haliax", who != "Equinox", who))


def _cells(row: Row, who: Sequence[str]) -> list[str]:
    bar = "" if row.bar is None else f"{row.bar:g}"
    others = [_cell(row, one) for one in ("Axonym", *who)]
    return [bar, *others, f"{_figure(row.figures[row.reference].median)} {row.unit}"]


def _cell(row: Row, who: str) -> str:
    if who not in row.ratios:
        return ""
    return f"{_ratio(row.ratios[who])} {MISSED}" if who == "Axonym" and row.missed else _ratio(row.ratios[who])


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
