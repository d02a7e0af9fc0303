"""What the images of a prompt are for, by the names of the arguments that take them."""

from mmrl.media.pictures import Role


def role_of(argument: str) -> Role:
    """Returns what the picture of an argument is, by the argument's name."""
    if is_mask(argument):
        return "mask"
    if "control" in argument:
        return "control"
    if argument.startswith("last_"):
        return "last_image"
    return "reference" if "reference" in argument else "image"


def is_mask(argument: str) -> bool:
    """Returns whether an argument takes a mask."""
    return "mask" in argument


def fits(role: Role, argument: str) -> bool:
    """Returns whether a picture of a role may go to an argument; pictures to edit and references share an argument."""
    wanted, plain = role_of(argument), ("image", "reference")
    return role == wanted or (role in plain and wanted in plain)
