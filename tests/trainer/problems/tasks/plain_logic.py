"""The meaning of statements by their definition: what truth tables are held against."""


def holds(statement, roles) -> bool:
    """Whether a statement is true when ``roles[i]`` says that person i is a knight."""
    kind, *parts = statement
    if kind in ("telling-truth", "lying"):
        return roles[parts[0]] == (kind == "telling-truth")
    if kind == "not":
        return not holds(parts[0], roles)
    left, right = (holds(part, roles) for part in parts)
    return {
        "and": left and right,
        "or": left or right,
        "->": not left or right,
        "<=>": left == right,
    }[kind]
