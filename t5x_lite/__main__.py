"""Entry point of `python -m t5x_lite`, which runs the command `t5x-lite`."""

from t5x_lite.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
