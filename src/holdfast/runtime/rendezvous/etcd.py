"""A rendezvous in etcd, over the JSON gateway of its v3 interface.

A record is a key, named by its number. It is written by a transaction that succeeds only if the key
was never created: that is the compare-and-swap. Reads are linearizable, so a member of etcd that is
cut off from the others answers nothing instead of something old. Of several members, given with
commas between them, the first one that answers is asked.
"""

import base64
import http.client
import json
from typing import Any

from holdfast.errors import HoldfastError

ANSWER_S = 1.0
PAGE = 32
"""Records at once: a member limits the size of what it sends."""
DEFAULT_PORT = 2379


class EtcdRendezvous:
    """(Rendezvous)"""

    def __init__(self, place: str, answer_s: float = ANSWER_S) -> None:
        """`place`: what follows `etcd://`."""
        members, _, prefix = place.partition("/")
        self._prefix = prefix.strip("/")
        if not members or not self._prefix:
            raise HoldfastError(
                f"etcd://{place}: expected etcd://HOST:PORT/NAME, with a name for the job"
            )
        self._members = [_parse(member, place) for member in members.split(",")]
        self._answer_s = answer_s

    # Records.

    def records(self, sequence: str, after: int = 0) -> list[bytes]:
        found: list[bytes] = []
        while True:
            page = self._range(sequence, after + len(found) + 1, {"limit": PAGE})
            found += [_decode(item["value"]) for item in page.get("kvs", [])]
            if not page.get("more"):
                return found

    def last(self, sequence: str) -> tuple[int, bytes]:
        newest = {"sort_order": "DESCEND", "sort_target": "KEY", "limit": 1}
        for item in self._range(sequence, 1, newest).get("kvs", []):
            return int(_decode(item["key"]).rpartition(b"/")[2]), _decode(item["value"])
        return 0, b""

    def append(self, sequence: str, number: int, record: bytes) -> bool:
        key = self._key(f"{sequence}/{number:08}")
        answer = self._ask(
            "txn",
            {
                "compare": [
                    {"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
                ],
                "success": [{"request_put": {"key": key, "value": _encode(record)}}],
            },
        )
        return bool(answer.get("succeeded"))

    def _range(self, sequence: str, first: int, options: dict[str, Any]) -> dict[str, Any]:
        begin, end = self._key(f"{sequence}/{first:08}"), self._key(f"{sequence}0")
        return self._ask("range", {"key": begin, "range_end": end, **options})

    def _key(self, name: str) -> str:
        return _encode(f"{self._prefix}/{name}".encode())

    def has(self, sequence: str, number: int) -> bool:
        key = self._key(f"{sequence}/{number:08}")
        return bool(self._ask("range", {"key": key, "count_only": True}).get("count"))

    # Values.

    def put(self, name: str, value: bytes) -> None:
        self._ask("put", {"key": self._key(name), "value": _encode(value)})

    def get(self, name: str) -> bytes:
        found = self._ask("range", {"key": self._key(name)}).get("kvs", [])
        return _decode(found[0].get("value", "")) if found else b""

    def secret(self) -> str:
        return self.get("secret").decode()

    def keep_secret(self, secret: str) -> None:
        self.put("secret", secret.encode())

    # Requests.

    def _ask(self, what: str, question: dict[str, Any]) -> dict[str, Any]:
        """OSError where no member answers."""
        body, errors = json.dumps(question), []
        for host, port in self._members:
            try:
                return _post(host, port, f"/v3/kv/{what}", body, self._answer_s)
            except (OSError, ValueError, http.client.HTTPException) as error:
                errors.append(f"{host}:{port}: {error!r}")
        raise OSError(f"etcd does not answer ({'; '.join(errors)})")


def _post(host: str, port: int, path: str, body: str, answer_s: float) -> dict[str, Any]:
    connection = http.client.HTTPConnection(host, port, timeout=answer_s)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        data = answer.read()
        if answer.status != http.client.OK:
            raise OSError(f"status {answer.status}: {data[:200].decode(errors='replace')}")
        found: dict[str, Any] = json.loads(data)
        return found
    finally:
        connection.close()


def _parse(member: str, place: str) -> tuple[str, int]:
    host, _, port = member.partition(":")
    if not host or not (port or str(DEFAULT_PORT)).isdigit():
        raise HoldfastError(f"etcd://{place}: {member!r} is not HOST:PORT")
    return host, int(port or DEFAULT_PORT)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(text: str) -> bytes:
    return base64.b64decode(text)
