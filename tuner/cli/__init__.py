"""The command line: one file a command, found by its module's `command`, imported when asked for."""

import importlib
import json
import pkgutil
import signal
import sys
from typing import Any, NoReturn

import click

from tuner import __version__
from tuner.search_spaces.errors import TunerError

INTERRUPTED = 130
TERMINATED = 143


class Terminated(BaseException):
    """SIGTERM arrived: unwind, keep everything, exit 143."""


class _Commands(click.Group):
    """Commands by module name; a module is imported for its own help or run only."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        names = sorted(m.name for m in pkgutil.iter_modules(__path__))
        return [n for n in names if not n.startswith("_")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        found = importlib.import_module(f"{__name__}.{cmd_name}").command
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from tuner.search_spaces.errors import nearest_name

        if args and args[0] not in self.list_commands(ctx) and not args[0].startswith("-"):
            ctx.fail(f"no command {args[0]!r}; {nearest_name(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="tuner")
def tuner() -> None:
    """Find the best tile configuration of a Pallas Mosaic GPU kernel, searching only legal ones.

    \b
    Exit codes: 0 ok, 1 failed or illegal, 2 usage, 3 nothing found, 4 regression,
    5 no usable GPU, 130 interrupted, 143 terminated.
    """


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs one command and exits with its code; a failure is one line, or one JSON object with --json."""
    arguments = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in arguments
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = tuner.main(args=arguments, prog_name="tuner", standalone_mode=False)
    except TunerError as error:
        _print_unsaved(getattr(error, "unsaved", ()))
        fail(error.code, error.message, error.fix, error.exit_code, as_json=as_json)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        fail("USAGE", error.format_message(), "see tuner --help", 2, as_json=as_json)
    except (KeyboardInterrupt, click.Abort):
        fail("INTERRUPTED", "interrupted; everything measured is kept", "", INTERRUPTED, as_json=as_json)
    except Terminated:
        fail("TERMINATED", "terminated; everything measured is kept", "", TERMINATED, as_json=as_json)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _print_unsaved(records: tuple[Any, ...]) -> None:
    """What a full disk did not take, as JSON lines on stderr, so that it is not lost."""
    for record in records:
        click.echo(json.dumps(record.to_dict()), err=True)


def _terminate(number: int, frame: Any) -> NoReturn:
    del number, frame
    raise Terminated


def fail(code: str, message: str, fix: str, exit_code: int, *, as_json: bool) -> NoReturn:
    """One line on stderr, or one object on stdout, and the exit code."""
    if as_json:
        click.echo(json.dumps({"error": {"code": code, "message": message, "fix": fix}}))
    else:
        click.echo(f"tuner: {message}" + (f"; {fix}" if fix else ""), err=True)
    sys.exit(exit_code)
