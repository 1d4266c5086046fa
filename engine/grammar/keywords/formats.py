"""Expressions of formats, where `llguidance` lets through what is none or holds back what is one.

Of a date, the day is in that month of that year. A leap second is the last one of a day in UTC,
which is told for offsets of whole quarters of an hour: there are no others. E-mail addresses are
those of RFC 5321, IPv6 addresses those of RFC 4291.
"""

from __future__ import annotations

from typing import Final

_LEAP_YEAR: Final = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE: Final = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_HOUR: Final = "(?:[01][0-9]|2[0-3])"
_FRACTION: Final = r"(?:\.[0-9]+)?"
_DAY_MINUTES: Final = 24 * 60


def _leap_seconds() -> str:
    """Times at which it is 23:59:60 in UTC."""
    times = []
    for offset in range(0, _DAY_MINUTES, 15):
        local = (offset - 1) % _DAY_MINUTES
        zones = [f"\\+{_clock(offset)}", f"-{_clock((-offset) % _DAY_MINUTES)}"]
        if not offset:
            zones.append("[zZ]")
        times.append(f"{_clock(local)}:60{_FRACTION}(?:{'|'.join(zones)})")
    return "|".join(times)


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


_TIME: Final = (
    f"(?:{_HOUR}:[0-5][0-9]:[0-5][0-9]{_FRACTION}(?:[zZ]|[+-]{_HOUR}:[0-5][0-9])|{_leap_seconds()})"
)

_BYTE: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4: Final = rf"(?:{_BYTE}\.){{3}}{_BYTE}"
_PIECE: Final = "[0-9a-fA-F]{1,4}"
_END: Final = f"(?:{_PIECE}:{_PIECE}|{_IPV4})"
_IPV6: Final = "|".join(
    (
        f"(?:{_PIECE}:){{6}}{_END}",
        *(
            f"{f'(?:(?:{_PIECE}:){{0,{before - 1}}}{_PIECE})?' if before else ''}"
            f"::(?:{_PIECE}:){{{5 - before}}}{_END}"
            for before in range(6)
        ),
        f"(?:(?:{_PIECE}:){{0,5}}{_PIECE})?::{_PIECE}",
        f"(?:(?:{_PIECE}:){{0,6}}{_PIECE})?::",
    )
)

_ATOM: Final = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
_QUOTED: Final = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_LABEL: Final = "[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_EMAIL: Final = (
    rf"(?:{_ATOM}(?:\.{_ATOM})*|{_QUOTED})"
    rf"@(?:{_LABEL}(?:\.{_LABEL})*|\[(?:{_IPV4}|IPv6:(?:{_IPV6}))\])"
)

FORMATS: Final = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[tT]{_TIME}",
    "email": _EMAIL,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
}
"""What a whole text of a format is, in the syntax of Rust's expressions."""
