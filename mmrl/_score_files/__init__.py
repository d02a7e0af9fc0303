"""What `mmrl score` reads and writes."""
