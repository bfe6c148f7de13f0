"""The messages about Flax's version, in full."""

from importlib import metadata

import pytest

from tokumx.compat import FrameworkVersionWarning
from tokumx_flax.compat import check_version


@pytest.mark.parametrize("version", ["0.12.8", "0.12.12"])
def test_check_version_inside_the_window_is_silent(version):
    check_version(version)


def test_check_version_outside_the_window_warns_and_says_what_to_install():
    with pytest.warns(FrameworkVersionWarning) as caught:
        check_version("0.13.0")
    assert [str(w.message) for w in caught] == [
        "tokumx-flax: Flax must be >=0.12.8,<0.12.13 (tested with 0.12.8 on "
        "jax 0.10.2 and 0.12.12 on jax 0.12.0.1); got 0.13.0. Install "
        "'flax>=0.12.8,<0.12.13', or compare results with the framework's own."
    ]
    assert caught[0].filename == __file__


def test_check_version_without_flax_raises_import_error(monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(ImportError) as caught:
        check_version()
    assert str(caught.value) == (
        "tokumx-flax: Flax must be installed; found no distribution named "
        "flax. Run: pip install 'flax>=0.12.8,<0.12.13'."
    )


def test_check_version_installed_flax_is_inside_the_window():
    check_version()
