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

<!-- Written by `make bench` from benchmarks/results; change the text in benchmarks/performance/page.py. -->

What named axes cost. Each row compares Axonym with the same program written by hand in JAX, with plain
arrays and axis numbers, in the way of JAX's own documentation. Where it makes sense, it also compares with
[Equinox](https://docs.kidger.site/equinox/) and [Haliax](https://haliax.readthedocs.io).

{short}## How to read the tables

A ratio of 1.20 means that Axonym takes 1.20 times as long as the reference, 1.00 that names cost nothing,
and less than 1 that Axonym is faster. The *bar* is the largest ratio that this project allows itself; rows
above it, to two decimals, are marked {missed}. The last column shows what the reference takes. It tells
how much a ratio matters: 1.5 of 4 us is nothing in a program whose steps take milliseconds.

The tenth and the ninetieth percentile are in parentheses. Figures without them are counts, which are the
same in each run.

Ratios far below 1 have one reason: outside of `jit`, functions of `jax.numpy` such as `einsum`, `softmax`
and indexing dispatch many operations, while Axonym compiles each operation once for the names and sizes
of its arguments. Compared with a reference that is compiled too, an operation costs a little more than by
hand, and a layer, which is several operations, a few times as much. Inside `jit`, names cost something
only while the program is traced.

## What the rows are

- *Leaves* are the arrays of a tree. Compiled functions are called with a model of Equinox modules that have
  five small arrays each. "JAX, same tree" is `jax.jit` with the same model of plain arrays, which shows how
  much of the cost is due to the tree; "Equinox" is `filter_jit` with that model.
- The *decoder* has 12 layers, 64 features and a vocabulary of 256; training steps are measured with 4 layers,
  256 features and a vocabulary of 1024. *Equations* are those of the traced program, *instructions* those
  of the program after XLA's optimization.
- On a GPU "Axonym" computes attention as by hand does, from all scores; "Axonym, cuDNN" leaves the choice to
  `dot_product_attention`, which takes cuDNN's kernel there.
- The loss of the decoder by hand selects the logits of the targets by comparison, as Axonym's does, because
  this works with a sharded vocabulary. "JAX, gathering" is the same decoder with a gather; a figure below 1
  means that the gather is faster than both.
- *Llama* and the other models by name are those of `examples/models` with 4 layers, 64 features and a vocabulary of
  512, next to the same models by hand in `benchmarks/by_hand`. *BERT* finds masked tokens; *ViT* classifies images of
  64 patches, which it embeds by a product, and the one by hand by a convolution; *Whisper* predicts tokens from speech.
- *Checkpoints* are of 12 arrays of normal numbers, sharded over eight devices, on the disk of temporary files. Orbax is
  called with plain arrays. Axonym also writes and compares checksums of all files. The peak of memory is what a process
  grows by, beyond the arrays that it saves. These rows use the disk and all cores, and vary more than others if the
  machine has other work.
- *Transformations* run over 8 layers. The body of *machinery alone* returns its input.
- *Files* are those of `save_safetensors` and `load_safetensors`, with 12 arrays sharded over both axes of a mesh of 8
  devices. The contender by hand copies each array to the host, saves all of them with `safetensors.numpy`, and loads
  them with it and one `jax.device_put`. The files are in the cache of the system.

## How it is measured

The contenders of a row take turns: each round times every one of them once, in a random order, after an
untimed call and with the garbage collector off. A ratio compares two figures of the same round, so anything
that slows the machine down slows both. The tables show the median of up to 41 rounds. What is timed is a
few calls in a row until they return, which is how JAX measures its own dispatch; results are awaited in
between. Equinox awaits the result of each call itself. Compiled programs are also compared by what does not
depend on the machine: the instructions of the optimized program, the bytes that it accesses, and the bytes
of temporary memory.

All contenders run in one process, which has the devices that the row needs. Imports, the first trace of a
process and the peak of memory are measured in fresh processes, also in a random order. Imports and traces
are measured in seconds of CPU time, with compiled bytecode and cached files.

Before they are timed, the contenders must compute the same result, except where only traces, shardings or
memory are measured.

## Limits

- The ratios of eager operations are those of small arrays, where the cost of the call dominates. With large
  arrays it vanishes.
- Products by hand use `jnp.einsum`, as most programs do. Much of their tracing time is spent on finding the
  order of the products; tracing by hand is faster with `jax.lax.dot_general`.
- `jax.device_put` looks at each array even if all are in place. Code that compares the shardings itself takes
  less time than that, and less than `shard`.
- Outside `jit`, `fold`, `scan` and `map` trace and compile at each call, so that they see changed globals.
  `jax.lax.scan` keeps what it compiled for a function and is far faster when it is called with the same
  function again. Inside `jit` there is no difference.
- Several devices are several threads of one CPU. Rows with several devices measure Python, not how fast data
  moves, and their figures vary more.
- Machines and versions of JAX differ by 5 to 10 %, and by more in rows of a few microseconds. Compare figures
  within one section only.
- Python's garbage collector runs after a certain number of allocations, so a few objects decide which import
  pays for a full collection. The row with the collector on shows the effect here.
- The tests of this project check most of these rows without a clock: they count Python calls, traces,
  equations, instructions and bytes.
{unmeasured}
## Measure it yourself

```console
$ make bench                                    # about ten minutes on two cores
$ make bench-smoke                              # does everything run? no figures
$ make bench ARGS="--only dispatch imports"     # some groups
$ make bench ARGS="--device gpu"                # training steps on a GPU
```

These commands use an environment of their own with Haliax. In any other environment,
`python -m benchmarks.performance` measures what is installed and says what it leaves out.
"""

IN_SHORT = """\
For each group with bars, in the last section of CPUs below, the row that is closest to its bar or furthest
above it."""

UNMEASURED = "- No GPU was measured so far; the GPU program is run on CPUs with tiny sizes, to check that it works.\n"


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
    """Returns the row of a group that is closest to its bar, or furthest above it; nothing if none has a bar."""
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
    smoke = " **A smoke run: these figures mean nothing.**" if found.smoke else ""
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
    """Returns who else has a ratio, Haliax and Equinox first."""
    found = dict.fromkeys(who for row in rows for who in row.ratios if who != "Axonym")
    return sorted(found, key=lambda who: (who != "Haliax", who != "Equinox", who))


def _cells(row: Row, who: Sequence[str]) -> list[str]:
    bar = "" if row.bar is None else f"{row.bar:g}"
    others = [_cell(row, one) for one in ("Axonym", *who)]
    return [bar, *others, f"{_figure(row.taken)} {row.unit}"]


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
