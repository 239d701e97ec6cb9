"""How a process ended, in words."""

import signal


def describe_exit(status: int, last_words: str = "") -> str:
    """As in "worker n0.g1 ...". `status`: exit code, or minus the signal that ended it."""
    if last_words:
        return f"failed: {last_words}"
    if status >= 0:
        return f"ended with exit status {status} before it was done"
    number = -status
    known = number in set(signal.Signals)
    return f"was killed by {signal.Signals(number).name if known else f'signal {number}'}"
