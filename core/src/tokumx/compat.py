"""Which versions of a host framework an adapter was made for."""

import re
import warnings
from dataclasses import dataclass
from importlib import metadata


class FrameworkVersionWarning(UserWarning):
    """The installed framework is outside the window an adapter is made for."""


@dataclass(frozen=True, slots=True)
class VersionWindow:
    """`oldest <= installed < below`, compared by release numbers alone.

    Attributes:
      adapter: the adapter's distribution, named in messages.
      framework: the framework as people call it.
      distributions: names it is installed under; the first one found counts.
      oldest: the first version inside, like "0.12.8".
      below: the first version past the end, like "0.12.13".
      evidence: what was run, for the warning.
    """

    adapter: str
    framework: str
    distributions: tuple[str, ...]
    oldest: str
    below: str
    evidence: str

    @property
    def requirement(self) -> str:
        """The window as pip reads it."""
        return f"{self.distributions[0]}>={self.oldest},<{self.below}"

    def __contains__(self, version: str) -> bool:
        return _release(self.oldest) <= _release(version) < _release(self.below)


def check_framework(window: VersionWindow, installed: str | None = None) -> None:
    """Warns when the framework's version is outside the window.

    Args:
      window: what the adapter supports.
      installed: the version to judge, or None to read the installed one.

    Raises:
      ImportError: the framework is not installed.
    """
    version = installed
    if version is None:
        version = _installed_version(window.distributions)
    if version is None:
        names = " or ".join(window.distributions)
        raise ImportError(
            f"{window.adapter}: {window.framework} must be installed; found no "
            f"distribution named {names}. Run: pip install '{window.requirement}'."
        )
    if version not in window:
        warnings.warn(
            f"{window.adapter}: {window.framework} must be >={window.oldest},"
            f"<{window.below} ({window.evidence}); got {version}. Install "
            f"'{window.requirement}', or compare results with the framework's own.",
            FrameworkVersionWarning,
            stacklevel=3,
        )


def _installed_version(distributions: tuple[str, ...]) -> str | None:
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _release(version: str) -> tuple[int, ...]:
    """(0, 32) for "0.32.0+cpu" and for "0.32.0rc1": trailing zeros do not count."""
    match = re.match(r"(\d+(?:\.\d+)*)", version)
    if match is None:
        raise ValueError(
            f"tokumx: a version must start with a number; got {version!r}."
        )
    return tuple(int(n) for n in re.sub(r"(\.0+)+$", "", match[1]).split("."))
