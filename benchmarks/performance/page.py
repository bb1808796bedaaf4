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
DEVICES = {"cpu": "CPU", "gpu": "GPU"}
MISSED = "**over**"

# One row of each group, for those who want no more.
SHORT = {
    "dispatch": "`named_jit`, a model of 100 leaves, scalar result",
    "dispatch_mesh": "`named_jit` on a mesh, a model of 300 leaves, scalar result",
    "elementwise": "`a + b`, same axes",
    "rearranging": "`softmax`",
    "tracing": "lowering of value and gradient, scanned",
    "programs": "compiled step, gradient, scanned",
    "sharding": "eager `shard` of 100 leaves that are in place, Auto mesh",
    "transforms": "eager `fold`, warm",
    "memory": "peak memory of a model of 378 MB made sharded",
    "imports": "`import jax, equinox, axonym`",
}

INTRODUCTION = """\
# Benchmarks

<!-- Written by `make bench` from benchmarks/results; a change belongs into benchmarks/performance/page.py. -->

What names cost, measured. Each row compares Axonym with the same thing written by hand in JAX, with
plain arrays and axis numbers, the way its own documentation does it; where it makes sense also with
[Equinox](https://docs.kidger.site/equinox/) and with [Haliax](https://haliax.readthedocs.io), in
their usual form. Before anything is timed, the contenders' results are compared with each other.

{short}## How to read it

A figure such as 1.20 says that Axonym takes 1.20 times what the reference takes: 1.00 is a name that
costs nothing, and less than that is a gain. The *bar* is the most that this project allows itself; a row
that is above it, to two digits behind the point, says {missed}. The last column has what the reference
takes by itself, and with it what a ratio is worth: 1.5 of 4 us is nothing in a program whose steps take
milliseconds.

In parentheses are the tenth and the ninetieth percentile. Where there are none, the figure is a count
and the same each time.

## How it is measured

All contenders of a row run in one process, which has the devices that the row needs and nothing else.
They take turns: each round times every contender once, in a shuffled order, after a call that is not
timed and with the garbage collector off. A ratio is of two figures of the same round, so that what slows
the machine down slows both; the table has the median over up to 41 rounds. What is timed is how long a
call takes to return, as JAX's own dispatch is measured: results are awaited between turns. Compiled
programs are compared by what does not depend on the machine as well: instructions of the optimized
program, bytes that it accesses, and bytes of temporary memory.

Imports are timed in fresh processes, in seconds of the processor, with compiled bytecode and files that
the system has cached. `import axonym` loads named arrays; meshes, partitioning, layers and the other
namespaces are loaded when they are first used, so a second row has the import of all of them.

## Limits

- Ratios of eager operations are those of small arrays, for which the cost of the call is all there is.
  For large arrays every contender's figure goes to 1.
- The loss of the decoder by hand picks the logits of the targets by comparison, as Axonym's does, because
  that divides a vocabulary over devices. The column "JAX, gathering" is the same decoder with a gather.
- Several devices are several threads of one CPU. What a row of several devices says is how long Python
  takes, not how fast data moves.
- Machines and versions of JAX differ by 5 to 10 %, and by more where a row takes microseconds. Read
  figures of one section only.
- Python's garbage collector runs when enough objects are new, so which import pays for a full collection
  is a matter of a few objects. The row with the collector on shows what it is here.
- The tests of this project hold most of these rows without a clock: they count Python calls, traces,
  equations, instructions and bytes.
{unmeasured}
## Measure it yourself

```console
$ make bench                                    # about 15 minutes on two cores
$ make bench-smoke                              # does everything run? no figures
$ make bench ARGS="--only dispatch imports"     # some groups
$ make bench ARGS="--device gpu"                # steps of training on a GPU
```

These set up an environment with Haliax of their own. In another one, `python -m benchmarks.performance`
measures what is there, and says what is left out.
"""

UNMEASURED = "- No GPU was measured so far; the program for it is run on CPUs, with tiny sizes, to see that it works.\n"


def page(found: Sequence[Results]) -> str:
    """Returns the page with these results, each in a section of its own."""
    cpus = [one for one in found if one.device == "cpu"]
    short = _short(cpus[-1]) if cpus else ""
    unmeasured = UNMEASURED if found == cpus else ""
    introduction = INTRODUCTION.format(missed=MISSED, short=short, unmeasured=unmeasured)
    return "\n".join([introduction, *(_section(one) for one in found)])


def _short(found: Results) -> str:
    groups = {name: found.groups[name].rows for name in SHORT if name in found.groups}
    rows = [row for name, group in groups.items() for row in group if row.what == SHORT[name]]
    who = [one for one in _contenders(rows) if one in ("Haliax", "Equinox")]
    cells = [[row.what, row.against, *(_median(row, one) for one in ("Axonym", *who))] for row in rows]
    lines = _table(["what", "against", "Axonym", *who], cells, words=2)
    return f"## In short\n\nSome rows of the last section of CPUs below.\n\n{lines}\n\n"


def _median(row: Row, who: str) -> str:
    return _figure(row.ratios[who].median) if who in row.ratios else ""


def _section(found: Results) -> str:
    python = ".".join(found.python.split(".")[:2])
    title = f"## {DEVICES[found.device]}, Python {python}, JAX {found.versions['jax']}"
    parts = [title, _setting(found), *(f"{sentence}" for sentence in found.missing)]
    parts += [_group(name, group) for name, group in found.groups.items()]
    return "\n\n".join(parts) + "\n"


def _setting(found: Results) -> str:
    machine = found.machine
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    rows = [row for group in found.groups.values() for row in group.rows if row.bar is not None]
    missed = sum(row.missed for row in rows)
    return (
        f"{found.date}, `{found.command}`. {machine['processor']}, {machine['cores']} cores, "
        f"{machine['memory_gib']:g} GiB, {machine['system']}; Python {found.python}, {versions}. "
        f"{len(rows) - missed} of {len(rows)} rows are within their bar."
    )


def _group(name: str, group: Group) -> str:
    who = _contenders(group.rows)
    references = {row.against for row in group.rows}
    alike = len(references) == 1
    against = f" Against {references.pop()}." if alike else ""
    words = ["what"] if alike else ["what", "against"]
    head = [*words, "bar", "Axonym", *who, "the reference takes"]
    cells = [[row.what, *([] if alike else [row.against]), *_cells(row, who)] for row in group.rows]
    return f"### {TITLES[name]}\n\n{_devices(group)}{against}\n\n{_table(head, cells, words=len(words))}"


def _devices(group: Group) -> str:
    kinds = " and ".join(f"{group.devices.count(kind)} x {kind}" for kind in dict.fromkeys(group.devices))
    return f"Devices: {kinds}."


def _contenders(rows: Sequence[Row]) -> list[str]:
    """Returns who has a ratio beside Axonym, Haliax and Equinox first."""
    found = dict.fromkeys(who for row in rows for who in row.ratios if who != "Axonym")
    return sorted(found, key=lambda who: (who != "Haliax", who != "Equinox", who))


def _cells(row: Row, who: Sequence[str]) -> list[str]:
    bar = "" if row.bar is None else f"{row.bar:g}"
    own = f"{_ratio(row.ratios['Axonym'])} {MISSED}" if row.missed else _ratio(row.ratios["Axonym"])
    others = [_ratio(row.ratios[one]) if one in row.ratios else "" for one in who]
    return [bar, own, *others, f"{_figure(row.figures[row.reference].median)} {row.unit}"]


def _ratio(spread: Spread) -> str:
    median, low, high = (_figure(one) for one in (spread.median, spread.p10, spread.p90))
    return median if low == high else f"{median} ({low}-{high})"


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
