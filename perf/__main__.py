"""Command line of the performance tools: `python -m kvdefrag.perf COMMAND`."""

import click

from .limits_command import limits
from .replay_command import replay


@click.group(name="kvdefrag.perf", context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Drive the allocator with serving traffic, or compute what a GPU allows."""


main.add_command(limits)
main.add_command(replay)

if __name__ == "__main__":
    main(prog_name="python -m kvdefrag.perf")
