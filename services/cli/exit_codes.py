"""With what status a command ends, beside 0."""

FAILED = 1  # one line on stderr says what is wrong and how to mend it
USAGE = 2  # an option or argument that isn't understood
NOT_YET = 3  # neither answered nor failed: ask again
SOME_FAILED = 4  # all is done, and some of it ended with an error
SIGNALLED = 128  # and the number of the signal on top: 130 after Ctrl-C

EPILOG = (
    f"Exit status: 0 done, {FAILED} failed, {USAGE} not understood, {NOT_YET} no answer yet, "
    f"{SOME_FAILED} some of a batch failed, {SIGNALLED + 2} interrupted."
)
