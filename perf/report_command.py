"""The command `report`: result files in, one HTML page out."""

from importlib.util import find_spec
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

from .result_files import ResultError, ResultFile, UnknownKind, read_result

NEEDED = ("plotly", "jinja2")


@click.command()
@click.argument(
    "paths",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, path_type=Path),
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    default="report.html",
    show_default=True,
    help="The page to write.",
)
@click.option("--title", help="Heading of the page. Default: kvdefrag performance.")
def report(paths: tuple[Path, ...], out: Path, title: str | None) -> None:
    """Draw result files as one HTML page that needs no network.

    A FILE is what `bench`, `replay --json`, `replay --compare --json`, `limits --json` or
    `make gpu-check` wrote, in any number and order, told apart by content; a folder stands for the
    JSON files in it. Of several records the newest is drawn in full, and all of them make the
    history. A chart whose input is missing says so.

    Exit status: 0, or 2 for a file that cannot be read.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise click.UsageError(f"{' and '.join(missing)} not found: pip install 'kvdefrag[charts]'")
    if not out.parent.is_dir():
        raise click.BadParameter(f"directory {out.parent} does not exist.", param_hint="--out")
    files = _read(paths)
    from .report_page import TITLE, build_page  # here, since plotly may be missing

    page = build_page(files, TITLE if title is None else title)
    out.write_text(page, encoding="utf-8")
    click.echo(f"{len(files)} files: {out}")


def _read(paths: tuple[Path, ...]) -> list[ResultFile]:
    """Behind a progress bar on stderr, if that is a terminal."""
    files = []
    found = [(path, False) for path in paths if not path.is_dir()]
    for folder in (path for path in paths if path.is_dir()):
        found += [(path, True) for path in sorted(folder.glob("*.json"))]
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        for path, by_folder in progress.track(found, description="read"):
            try:
                files.append(read_result(path))
            except UnknownKind as error:
                if not by_folder:
                    raise click.UsageError(str(error)) from error
                click.echo(f"passed over {error}", err=True)
            except ResultError as error:
                raise click.UsageError(str(error)) from error
    if not files:
        raise click.UsageError("no result file in these folders.")
    return files
