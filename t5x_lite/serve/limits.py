"""The bounds of a request, and the refusal of one that is outside of them."""

import dataclasses
import ipaddress
from collections.abc import Mapping

from t5x_lite.errors import InputError

SHORTEST_TOKEN = 16
"""Characters of an access token at least."""


class Refused(Exception):
    """A request that is not answered.

    Attributes:
      status: the HTTP status.
      headers: of the response, besides those of every response.
    """

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None):
        super().__init__(sentence)
        self.status = status
        self.headers = dict(headers or {})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What one server takes.

    Attributes:
      max_body: bytes of a request's body at most.
      max_rows: texts of a request at most; of ranked candidates, texts times candidates.
      queue: texts that wait at most; a request with which there would be more is refused.
      connections: open at the same time at most.
      timeout: seconds from a request's headers to its answer at most.
      body_timeout: seconds that a request's headers, and then its body, may take to arrive.
    """

    max_body: int = 1 << 20
    max_rows: int = 128
    queue: int = 1024
    connections: int = 1000
    timeout: float = 60.0
    body_timeout: float = 10.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 1 if field.type is int else 0.05
            if not value >= least or value == float("inf"):
                raise InputError(f"{field.name} must be finite and at least {least}: got {value}")
        if self.max_rows > self.queue:
            raise InputError(
                f"a request may have {self.max_rows} texts, and the queue holds {self.queue}: "
                "raise the queue, or lower max_rows"
            )


def check_address(host: str, token: str | None) -> None:
    """Refuses an address that others reach, where no token protects it, and a token that is short.

    Args:
      host: an address, or "localhost".
      token: that every request must bring; None is none.

    Raises:
      InputError: with what to do.
    """
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise InputError(
            f"the access token has {len(token)} characters: it must have {SHORTEST_TOKEN} or more; "
            'make one by python -c "import secrets; print(secrets.token_urlsafe())"'
        )
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise InputError("the access token must be printable ASCII without spaces")
    if token is None and not is_loopback(host):
        raise InputError(
            f"--host {host} is reached from other machines: set an access token in the environment "
            "variable T5X_LITE_TOKEN or by --token-file, or serve on 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Whether a host's name or address means this machine, and is reached from it alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
