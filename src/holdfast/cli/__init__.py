"""The `holdfast` command."""


def main() -> None:
    raise SystemExit("holdfast: no commands yet")
