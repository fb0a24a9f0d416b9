"""The program, run in this process."""

from typer.testing import CliRunner, Result

from mtformer.cli.app import app


def invoke(*arguments: object, stdin: bytes = b"") -> Result:
    """What a call of `mtformer` printed, and its exit code."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
