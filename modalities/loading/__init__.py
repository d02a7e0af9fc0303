"""Models from folders and the hub, and adapters on them."""
