"""Certificates for TLS, made with openssl."""

import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.runtime.wire.tls import TlsFiles

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="there is nothing to make a certificate with"
)


def make_certificate(folder: Path, name: str = "job") -> TlsFiles:
    cert, key = folder / f"{name}.cert.pem", folder / f"{name}.key.pem"
    make = f"openssl req -x509 -newkey rsa:2048 -nodes -subj /CN={name} -days 1"
    command = [*make.split(), "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return TlsFiles(str(cert), str(key))
