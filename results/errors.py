"""What goes wrong with records and databases, beside `tuner.search_spaces.errors`.

TunerError
├── BadRecordError(ValueError)        a record with unknown, missing or impossible fields
└── DatabaseError
    ├── NoDatabaseError               there is no database at this place
    └── DiskFullError                 no space left; everything committed is kept
"""

from tuner.search_spaces.errors import DatabaseError, TunerError


class BadRecordError(TunerError, ValueError):
    """A record that cannot be understood; the others are not affected."""

    code = "BAD_RECORD"


class NoDatabaseError(DatabaseError):
    """Nothing has been recorded at this place yet."""

    code = "NO_DATABASE"
    exit_code = 3


class DiskFullError(DatabaseError):
    """No space left for a new record; committed ones are intact."""

    code = "DISK_FULL"
