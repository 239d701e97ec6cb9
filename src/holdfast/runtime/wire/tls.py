"""TLS of a job: one certificate and its key, the same files on every host.

Both sides show it and believe no other, whatever host it names. It proves no more than the secret
does, and keeps out those who listen or change bytes on the way.
"""

import ssl

import msgspec

from holdfast.runtime.config.job_sections import JobSection


class TlsFiles(msgspec.Struct, frozen=True):
    """Paths; empty = no TLS."""

    cert: str = ""
    key: str = ""


NO_TLS = TlsFiles()


def files_of(job: JobSection) -> TlsFiles:
    return TlsFiles(job.tls_cert, job.tls_key)


def server_tls(files: TlsFiles) -> ssl.SSLContext | None:
    return _context(files, ssl.PROTOCOL_TLS_SERVER)


def client_tls(files: TlsFiles) -> ssl.SSLContext | None:
    return _context(files, ssl.PROTOCOL_TLS_CLIENT)


def _context(files: TlsFiles, protocol: int) -> ssl.SSLContext | None:
    if not files.cert:
        return None
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(files.cert)
    context.load_cert_chain(files.cert, files.key)
    return context
