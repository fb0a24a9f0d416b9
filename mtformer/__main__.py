"""Entry point of the `mtformer` program and of `python -m mtformer`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C shows no traceback while modules are imported either."""
    try:
        from mtformer.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
