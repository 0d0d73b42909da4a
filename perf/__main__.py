"""Command line of the performance tools: `python -m kvdefrag.perf COMMAND`."""

import click

from .benchmark_command import bench
from .compare_command import compare
from .export_command import export
from .limits_command import limits
from .replay_command import replay
from .report_command import report


@click.group(name="kvdefrag.perf", context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Measure the allocator, replay traffic through it, and look at the results.

    `bench`, `replay` and `limits` write results, `report`, `compare` and `export` read them.
    """


for command in (bench, replay, limits, report, compare, export):
    main.add_command(command)

if __name__ == "__main__":
    main(prog_name="python -m kvdefrag.perf")
