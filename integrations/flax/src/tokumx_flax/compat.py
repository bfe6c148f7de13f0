"""The Flax versions this adapter is made for."""

from tokumx.compat import VersionWindow, check_framework

WINDOW = VersionWindow(
    adapter="tokumx-flax",
    framework="Flax",
    distributions=("flax",),
    oldest="0.12.8",
    below="0.12.13",
    evidence="tested with 0.12.8 on jax 0.10.2 and 0.12.12 on jax 0.12.0.1",
)


def check_version(installed: str | None = None) -> None:
    """Warns when Flax is outside `WINDOW`.

    Args:
      installed: the version to judge, or None to read the installed one.

    Raises:
      ImportError: Flax is not installed.
    """
    check_framework(WINDOW, installed)
