"""`python -m mmrl`, as `accelerate launch -m mmrl` needs it."""

from mmrl.cli import main

main()
