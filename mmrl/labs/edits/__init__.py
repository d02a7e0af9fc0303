"""Pictures of two shapes, edits of one of them, and the tiny FLUX.1 Kontext that makes the edits."""
