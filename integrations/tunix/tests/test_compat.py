"""The messages about Tunix's version, in full."""

from importlib import metadata

import pytest

from tokumx.compat import FrameworkVersionWarning
from tokumx_tunix.compat import check_version


@pytest.mark.parametrize("version", ["0.1.7"])
def test_check_version_inside_the_window_is_silent(version):
    check_version(version)


def test_check_version_outside_the_window_warns_and_says_what_to_install():
    with pytest.warns(FrameworkVersionWarning) as caught:
        check_version("0.1.6")
    assert [str(w.message) for w in caught] == [
        "tokumx-tunix: Tunix must be >=0.1.7,<0.1.8 (seams tried on 0.1.7, CPU); "
        "got 0.1.6. Install 'google-tunix>=0.1.7,<0.1.8', or compare results with the "
        "framework's own."
    ]
    assert caught[0].filename == __file__


def test_check_version_without_tunix_raises_import_error(monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(ImportError) as caught:
        check_version()
    assert str(caught.value) == (
        "tokumx-tunix: Tunix must be installed; found no distribution named "
        "google-tunix. Run: pip install 'google-tunix>=0.1.7,<0.1.8'."
    )
