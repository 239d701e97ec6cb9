"""The command line: one file per command.

Rules of this package. A command's module imports only light things at its top (the standard
library, cyclopts, `holdfast.errors`); whatever pulls in numpy, scipy or torch is imported inside
the function that needs it, so that `holdfast --help` stays quick. A command returns its exit code,
or None for 0, and raises `HoldfastError` for the user's mistakes; `main` does the rest.
"""
