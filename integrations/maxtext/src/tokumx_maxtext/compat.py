"""The MaxText versions this adapter is made for."""

from tokumx.compat import VersionWindow, check_framework

WINDOW = VersionWindow(
    adapter="tokumx-maxtext",
    framework="MaxText",
    distributions=("maxtext",),
    oldest="0.2.5",
    below="0.2.6",
    evidence="seams tried on 0.2.5, CPU",
)


def check_version(installed: str | None = None) -> None:
    """Warns when MaxText is outside `WINDOW`.

    Args:
      installed: the version to judge, or None to read the installed one.

    Raises:
      ImportError: MaxText is not installed.
    """
    check_framework(WINDOW, installed)
