"""Small random twins of published checkpoints: real classes, every part present."""
