"""What a GUI agent does, and the dialects in which models write it. `mmrl.actions` is the door."""
