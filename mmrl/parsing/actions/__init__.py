"""What a GUI agent does, and the dialects in which models write it. `mmrl.parsing.actions.dialects` is the door."""
