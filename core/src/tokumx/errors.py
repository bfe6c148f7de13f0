"""The two errors a caller can meet: wrong everywhere, and wrong here."""


class UnsupportedError(Exception):
    """No requested implementation can run this call on this device.

    The arguments are valid: another implementation, device or jax version
    could run them. Arguments that are wrong everywhere raise ValueError.
    """


class TuningFileWarning(UserWarning):
    """A tuned file could not be used; it was set aside or skipped."""
