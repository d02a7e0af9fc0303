"""What `mmrl.report` is made of: reading a run, numbers as words, charts, pictures, sections, the theme."""
