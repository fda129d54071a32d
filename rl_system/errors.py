"""The error a person gets when what they asked for cannot be done."""


class UserError(Exception):
    """Bad input from outside: configuration, a path, a file, a machine too small.

    The message is one paragraph that names the field, the value and what would be right. Commands print it
    without a traceback and exit with 2. Anything else that escapes is a bug and keeps its traceback.
    """
