"""Access to the machine: files, the terminal, threads and time limits; errors and their messages."""
