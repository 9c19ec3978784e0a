"""Parsing and checking of JSON requests.

    record = parse(b'{"inputs": "dogs bark"}', fields={"inputs", "seed"})
    texts(record, "inputs", most=128)        # ["dogs bark"]

Every error is a complete sentence that names the field.
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
"""Minimum length of an access token, in characters."""


class Refused(Exception):
    """Exception for a request that is rejected with an HTTP error.

    Attributes:
      status: HTTP status.
      headers: additional headers of the response.
    """

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None):
        super().__init__(sentence)
        self.status = status
        self.headers = dict(headers or {})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server on requests, connections and times.

    Attributes:
      max_body: maximum bytes of a request body.
      max_rows: maximum texts of a request; with candidates, maximum number of texts times
        candidates.
      queue: maximum texts that wait in the queue; requests beyond it are rejected.
      connections: maximum number of open connections.
      timeout: maximum seconds from the headers of a request to its response.
      body_timeout: maximum seconds to receive the headers of a request, and the same for its body.
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
                f"a request may have {self.max_rows} texts, but the queue holds only "
                f"{self.queue}; increase the queue, or decrease max_rows"
            )


def check_address(host: str, token: str | None) -> None:
    """Raise InputError if the host is public and no token is set, or if the token is too short."""
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise InputError(
            f"the access token has {len(token)} characters, but needs at least {SHORTEST_TOKEN}; "
            'make one with python -c "import secrets; print(secrets.token_urlsafe())"'
        )
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise InputError("the access token must be printable ASCII without spaces")
    if token is None and not is_loopback(host):
        raise InputError(
            f"--host {host} is reachable from other machines, but no access token is set; set "
            "one in the environment variable T5X_LITE_TOKEN or by --token-file, or serve on "
            "127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Return True if a host name or address is reachable only from this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def parse(body: bytes, *, fields: Collection[str]) -> dict[str, Any]:
    """Parse a request body as a JSON object with known fields."""
    try:
        record = json.loads(body.decode(), parse_constant=_no_number, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise Refused(400, f"The body is not UTF-8 (byte {error.start}).") from error
    except json.JSONDecodeError as error:
        what = f"{error.msg.removesuffix(' at')} at character {error.pos}"
        raise Refused(400, f"The body is not JSON: {what}.") from error
    except (RecursionError, ValueError) as error:  # brackets without end, a number of 5000 digits
        raise Refused(
            400, "The JSON body has an invalid or too large number, or is nested too deeply."
        ) from (error)
    if not isinstance(record, dict):
        raise Refused(400, f"The body must be a JSON object, got {_kind(record)}.")
    for name in record:
        if name not in fields:
            shown = ascii(name[:40])
            hint = did_you_mean(name[:40], fields) or f"; it may have {', '.join(sorted(fields))}"
            raise Refused(400, f"The request has an unknown field {shown}{hint}.")
    return record


def texts(record: Mapping[str, Any], name: str, *, most: int) -> list[str]:
    """Return the texts of a request field that is a string or a list of strings."""
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
    """Raise `Refused` with status 413 if a request has too many texts."""
    if number > most:
        raise Refused(
            413, f"A request may have at most {most} texts, got {number}; send several requests."
        )


def check_text(text: str, where: str) -> None:
    """Raise `Refused` with status 400 if a text has half a surrogate pair, which is not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Refused(
            400, f"{where} contains half of a surrogate pair, which is not valid Unicode."
        ) from error


def optional_text(record: Mapping[str, Any], name: str) -> str | None:
    """Return a string field of a request, or None if it is omitted or null."""
    value = record.get(name)
    if value is not None and not isinstance(value, str):
        raise Refused(400, f'"{name}" must be a string, got {_kind(value)}.')
    if value is not None:
        check_text(value, f'"{name}"')
    return value


def optional_number(record: Mapping[str, Any], name: str, *, below: int) -> int | None:
    """Return a field of a request that is an integer of at least 0, or None if omitted or null."""
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
