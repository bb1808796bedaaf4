"""The schedule that XLA for GPUs has made of a program, with its own estimates of time.

The format is XLA's own and private: seen in jax-cuda12-plugin 0.10.2. Should it change, there are no times.
"""

import re


_NAME = re.compile(r'^      name: "([^"]*)"$')
_ID = re.compile(r"^      id: (\d+)$")
_SCHEDULED = re.compile(r"^    (id|start_timestamp_cycles|end_timestamp_cycles): ([\d.e+\-]+)$")
_RATE = re.compile(r"^  cycles_per_microsecond: ([\d.e+\-]+)$")


def read_gpu_schedule(text: str) -> dict[str, float]:
    """Returns the seconds of each instruction by its name, of those that take time; empty if it cannot be read."""
    program, start, schedules = text.partition("\ncomputation_schedules {")
    names = _read_names(program)
    seconds: dict[str, float] = {}
    for schedule in (start + schedules).split("\ncomputation_schedules {")[1:]:
        seconds |= _read_times(schedule, names)
    return seconds


def _read_names(program: str) -> dict[str, str]:
    names, name = {}, ""
    for line in program.splitlines():
        if found := _NAME.match(line):
            name = found[1]
        elif found := _ID.match(line):
            names[found[1]] = name
    return names


def _read_times(schedule: str, names: dict[str, str]) -> dict[str, float]:
    times: dict[str, dict[str, float]] = {}
    one, rate = "", 1.0
    for line in schedule.splitlines():
        if found := _SCHEDULED.match(line):
            if found[1] == "id":
                one = found[2]
            else:
                times.setdefault(one, {})[found[1]] = float(found[2])
        elif found := _RATE.match(line):
            rate = float(found[1])
    found_times = {
        names[one]: (both.get("end_timestamp_cycles", 0.0) - both.get("start_timestamp_cycles", 0.0)) / rate / 1e6
        for one, both in times.items()
        if one in names
    }
    return {name: seconds for name, seconds in found_times.items() if seconds > 0}
