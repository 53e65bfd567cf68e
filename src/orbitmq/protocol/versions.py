"""Version numbers: every command carries the ordinal of its sender's release. Java: MQVersion.Version"""

from __future__ import annotations

from typing import Final

FIRST_WITH_RESET_OFFSET: Final = 28  # 3.0.7-SNAPSHOT: before it, clients cannot be sent to another offset
FIRST_WITH_REGISTRATION_BODY: Final = 37  # 3.0.11: before it, REGISTER_BROKER carries the bare topic table
FIRST_WITH_RUNNING_INFO: Final = 62  # 3.1.8-SNAPSHOT: before it, clients answer no questions about themselves
FIRST_WITH_STANDARD_JSON: Final = 401  # 4.9.4: before it, clients expect integer map keys unquoted
FIRST_WITH_QUEUE_MAPPING: Final = 413  # 5.0.0: from it on, a compressed registration ends with a mapping section
FIRST_OF_5: Final = 413

OURS: Final = 479  # we behave as 5.3.3, and say so in every command


def ordinal(major: int, minor: int, patch: int) -> int:
    """The number of release `major.minor.patch`; each release's SNAPSHOT stands one below it. Holds for 4.0.0 to 5.9.9."""
    return 213 + 2 * ((major - 4) * 100 + minor * 10 + patch)


def name(number: int) -> str:
    """V5_3_3, as Java spells it; the bare number for releases before 4.0.0."""
    if number < ordinal(4, 0, 0):
        return str(number)
    release, is_snapshot = divmod(number - ordinal(4, 0, 0) + 1, 2)
    text = f"V{4 + release // 100}_{release // 10 % 10}_{release % 10}"
    return f"{text}_SNAPSHOT" if not is_snapshot else text
