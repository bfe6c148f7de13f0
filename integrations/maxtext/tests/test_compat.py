"""The messages about MaxText's version, in full."""

from importlib import metadata

import pytest

from tokumx.compat import FrameworkVersionWarning
from tokumx_maxtext.compat import check_version


@pytest.mark.parametrize("version", ["0.2.5", "0.2.5.post1"])
def test_check_version_inside_the_window_is_silent(version):
    check_version(version)


def test_check_version_outside_the_window_warns_and_says_what_to_install():
    with pytest.warns(FrameworkVersionWarning) as caught:
        check_version("0.2.6")
    assert [str(w.message) for w in caught] == [
        "tokumx-maxtext: MaxText must be >=0.2.5,<0.2.6 (seams tried on 0.2.5, CPU); "
        "got 0.2.6. Install 'maxtext>=0.2.5,<0.2.6', or compare results with the "
        "framework's own."
    ]
    assert caught[0].filename == __file__


def test_check_version_without_maxtext_raises_import_error(monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(ImportError) as caught:
        check_version()
    assert str(caught.value) == (
        "tokumx-maxtext: MaxText must be installed; found no distribution named "
        "maxtext. Run: pip install 'maxtext>=0.2.5,<0.2.6'."
    )


def test_check_version_unreadable_version_raises_value_error():
    with pytest.raises(ValueError) as caught:
        check_version("unknown")
    assert str(caught.value) == (
        "tokumx: a version must start with a number; got 'unknown'."
    )
