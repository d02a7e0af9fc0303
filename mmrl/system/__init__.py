"""Files, terminal, processes and errors: what stands between mmrl and the machine."""
