"""What every message of a job is made of."""

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Told apart by the name of its class; what does not belong to it is refused."""
