"""The command line: one module a command, loaded when it is used. Commands parse, call the API and print."""

from __future__ import annotations

import importlib
import sys

import click

from trtconvert.cli import interrupt
from trtconvert.errors import ConvertError, NoUsableGpuError

# Command and its line in --help, here so that --help need not load the modules.
COMMANDS = {
    "build": "Build a TensorRT engine from an ONNX model.",
    "fuse": "Replace subgraphs of an ONNX model by plugin nodes.",
    "verify": "Compare an engine with the ONNX model it was built from.",
    "refit": "Give a plan the weights of another model of the same structure.",
    "bench": "Time an engine with plugins against TensorRT's own layers.",
    "export": "Take a plan to Triton, a C++ program or trtexec.",
    "inspect": "Describe a model or a plan.",
    "plugins": "List or check ops, and make plugins for programs without Python.",
    "cache": "List the engines that --cache keeps, or clear them.",
    "doctor": "Say what this machine can build and run, and what is missing.",
}


class Commands(click.Group):
    """Loads a command's module on use."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"trtconvert.cli.{name}").command
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trtconvert")
def cli() -> None:
    """ONNX models to TensorRT engines with fused plugin kernels, proven equal to onnxruntime.

    \b
    trtconvert build model.onnx
    trtconvert verify model.plan

    Exit codes: 0 good, 1 failed, 2 wrong usage, 3 done but no GPU here could run the engine.
    """


def main() -> None:
    """Entry point: ConvertError becomes its text and an exit code, never a traceback."""
    interrupt.heed()
    try:
        cli(standalone_mode=False, prog_name="trtconvert")
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        print("aborted", file=sys.stderr)
        sys.exit(1)
    except ConvertError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(3 if isinstance(error, NoUsableGpuError) else 1)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
