"""Entry point of `python -m mtformer`."""

from mtformer.cli.app import main

if __name__ == "__main__":
    main()
