"""The Tunix versions this adapter is made for."""

from tokumx.compat import VersionWindow, check_framework

WINDOW = VersionWindow(
    adapter="tokumx-tunix",
    framework="Tunix",
    distributions=("google-tunix",),
    oldest="0.1.7",
    below="0.1.8",
    evidence="seams tried on 0.1.7, CPU",
)


def check_version(installed: str | None = None) -> None:
    """Warns when Tunix is outside `WINDOW`.

    Args:
      installed: the version to judge, or None to read the installed one.

    Raises:
      ImportError: Tunix is not installed.
    """
    check_framework(WINDOW, installed)
