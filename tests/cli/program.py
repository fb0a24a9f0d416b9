"""Run the program in the test process."""

from typer.testing import CliRunner, Result

from mtformer.cli.app import app


def invoke(*arguments: object, stdin: bytes = b"") -> Result:
    """Run `mtformer` and return its output and exit code."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
