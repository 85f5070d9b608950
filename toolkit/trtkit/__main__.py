"""`python -m trtkit`, for environments whose scripts are not on PATH."""

from trtkit.cli.main import cli

if __name__ == "__main__":
    cli()
