"""Reading what models write: answers, coordinates, actions."""
