"""The JSON of a request, and its bounds.

    record = parse(b'{"inputs": "dogs bark"}', fields={"inputs", "seed"})
    texts(record, "inputs", most=128)        # ["dogs bark"]

Every error is a sentence that names the field.
"""

import dataclasses
import ipaddress
import json
import math
from collections.abc import Collection, Mapping
from typing import Annotated, Any

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import AtLeast, Count, check_bounds, did_you_mean

SHORTEST_TOKEN = 16
"""Characters of an access token at least."""


class Refused(Exception):
    """A request that is not answered.

    Attributes:
      status: the HTTP status.
      headers: additional headers of the response.
    """

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None):
        super().__init__(sentence)
        self.status = status
        self.headers = dict(headers or {})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one server.

    Attributes:
      max_body: maximum bytes of a request's body.
      max_rows: maximum texts of a request; for ranked candidates, texts times candidates.
      queue: maximum waiting texts; a request that exceeds it is rejected.
      connections: maximum open connections.
      timeout: maximum seconds from a request's headers to its answer.
      body_timeout: seconds that a request's headers, and then its body, may take to arrive.
    """

    max_body: Count = 1 << 20
    max_rows: Count = 128
    queue: Count = 1024
    connections: Count = 1000
    timeout: Annotated[float, AtLeast(0.05)] = 60.0
    body_timeout: Annotated[float, AtLeast(0.05)] = 10.0

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.max_rows > self.queue:
            raise InputError(
                f"a request may have {self.max_rows} texts, and the queue holds {self.queue}: "
                "raise the queue, or lower max_rows"
            )


def check_address(host: str, token: str | None) -> None:
    """Reject an address that others reach without a token, and a token that is short."""
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
    """Return True if a host's name or address is reachable only from this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def parse(body: bytes, *, fields: Collection[str]) -> dict[str, Any]:
    """Return the object that a body holds."""
    try:
        record = json.loads(body.decode(), parse_constant=_no_number, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise Refused(400, f"The body is not UTF-8 (byte {error.start}).") from error
    except json.JSONDecodeError as error:
        what = f"{error.msg.removesuffix(' at')} at character {error.pos}"
        raise Refused(400, f"The body is not JSON: {what}.") from error
    except (RecursionError, ValueError) as error:  # brackets without end, a number of 5000 digits
        raise Refused(400, "The body is JSON with a number or a depth that cannot be read.") from (
            error
        )
    if not isinstance(record, dict):
        raise Refused(400, f"The body must be a JSON object, got {_kind(record)}.")
    for name in record:
        if name not in fields:
            shown = ascii(name[:40])
            hint = did_you_mean(name[:40], fields) or f"; it may have {', '.join(sorted(fields))}"
            raise Refused(400, f"The request has an unknown field {shown}{hint}.")
    return record


def texts(record: Mapping[str, Any], name: str, *, most: int) -> list[str]:
    """Return the texts of a field, which is a string or a list of strings."""
    if name not in record:
        raise Refused(400, f'The request must have "{name}", a string or a list of strings.')
    value = record[name]
    result = [value] if isinstance(value, str) else value
    if not isinstance(result, list):
        raise Refused(400, f'"{name}" must be a string or a list of strings, got {_kind(value)}.')
    if not result:
        raise Refused(400, f'"{name}" must have at least one text.')
    check_rows(len(result), most=most)
    for place, text in enumerate(result):
        if not isinstance(text, str):
            raise Refused(400, f'"{name}"[{place}] must be a string, got {_kind(text)}.')
        check_text(text, f'"{name}"[{place}]')
    return result


def check_rows(number: int, *, most: int) -> None:
    """Raise Refused with status 413 if a request has too many texts."""
    if number > most:
        raise Refused(413, f"A request may have {most} texts, got {number}; send several.")


def check_text(text: str, where: str) -> None:
    """Raise Refused with status 400 for half a surrogate pair, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Refused(400, f"{where} has half of a surrogate pair, which is not text.") from error


def optional_text(record: Mapping[str, Any], name: str) -> str | None:
    """Return a field that is a string, or omitted, or null."""
    value = record.get(name)
    if value is not None and not isinstance(value, str):
        raise Refused(400, f'"{name}" must be a string, got {_kind(value)}.')
    if value is not None:
        check_text(value, f'"{name}"')
    return value


def optional_number(record: Mapping[str, Any], name: str, *, below: int) -> int | None:
    """Return a field that is a whole number from 0, or omitted, or null."""
    value = record.get(name)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < below:
        raise Refused(400, f'"{name}" must be a whole number from 0 to {below - 1}.')
    return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a truth value"}
    return "null" if value is None else names.get(type(value), "a number")


def _no_number(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("too large for a float")
    return value
