"""What was asked for in a way that can't be understood."""


class UsageError(Exception):
    """Raised with the status to end with; without a message the help was printed."""

    def __init__(self, message: str, status: int) -> None:
        self.status = status
        super().__init__(message)
